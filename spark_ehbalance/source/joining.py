"""How a query comes to its group's lease table: it makes one at its first start, and later makes sure that the table
still knows where reading had come to, before it reads or creates anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from spark_ehbalance.errors import DataLossError, OptionError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.transitions import Restore
from spark_ehbalance.source.continuity import Memory, lost_memory, restored, skipped
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores.base import LeaseStore, commit_and_record

_LOG = logging.getLogger(__name__)

_WHY = "the lease table did not know it any more"


def join_table(
    store: LeaseStore, options: Options, known: StreamOffset, memory: Memory, partitions: Sequence[str], by: Author
) -> None:
    """Make or check the lease table of `options`, open as `store`, for a query that goes on after `known` and knows
    `memory`.

    `partitions` are the hub's. Where the table does not know all of `memory`, raises `DataLossError` or, with
    failOnDataLoss=false, puts it back. Raises `StoreFormatError`, `StoreUnavailableError`.
    """
    lost = "" if known.first else _lost(store, options, known, memory)
    if lost and options.fail_on_data_loss:
        raise DataLossError(
            f"{lost}. Nothing was read or created. Put the table back, set leaseTable to where it is, or make one of "
            f"the queries' own checkpoints with `{_command(options)} --from-checkpoint DIR`, once for each query of "
            "the group. With failOnDataLoss=false the query goes on from what its own checkpoint knows"
        )
    store.create(options.connection.group(options.consumer_group))
    if lost:
        _LOG.warning("%s. Going on from what this query's own checkpoint knows, because failOnDataLoss=false", lost)
        _put_back(store, memory, partitions, by)


def _command(options: Options) -> str:
    group = f"--event-hub-name {options.connection.hub} --consumer-group '{options.consumer_group}'"
    return f"ehbalance init {options.lease_table} {group}"


def check_alone(known: StreamOffset, options: Options) -> None:
    """Raise `DataLossError` where a query has read with a lease table and is to go on without."""
    if known.first or not known.group:
        return
    lost = f"this query's checkpoint has read with {_named(known)}, and leaseTable is not set"
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{lost}: what the checkpoint does not know of itself would begin at startingPosition. Set leaseTable "
            "again, give the query a new checkpointLocation, or go on with failOnDataLoss=false"
        )
    _LOG.warning("%s. What it does not know of itself begins at startingPosition, as failOnDataLoss=false", lost)


def check_hub(known: StreamOffset, options: Options) -> None:
    """Raise `OptionError` where a query has read another event hub: its positions mean nothing in this one."""
    if known.hub and known.hub != options.connection.hub.lower():
        raise OptionError(
            f"eventHubName={options.connection.hub}: this query's checkpoint has read event hub {known.hub}; set that "
            "again, or give the query a new checkpointLocation"
        )


def _lost(store: LeaseStore, options: Options, known: StreamOffset, memory: Memory) -> str:
    found = store.read() if store.exists() else None
    if found is not None and found.group != options.connection.group(options.consumer_group):
        return ""  # nobody's positions are lost by that: `create` says what is wrong
    lost = lost_memory(known, memory, found)
    anonymous = found is not None and found.table is None and known.table is None
    if not lost and anonymous and known.group != group_name(options.lease_table):
        lost = "that may be another table"  # earlier versions knew tables by their places
    then = f"this query's checkpoint has read with {_named(known)}"
    return f"leaseTable={options.lease_table}: {lost}; {then}" if lost else ""


def _named(known: StreamOffset) -> str:
    if known.table is not None:
        return f"the lease table {known.table.location} (id {known.table.id})"
    return "a lease table" if known.group else "no lease table"


def _put_back(store: LeaseStore, memory: Memory, partitions: Sequence[str], by: Author) -> None:
    found, at_ms = store.read(), time.time_ns() // 1_000_000
    same = found.table is not None and found.table.covers(memory.lineages)
    said = restored(memory, found, by, at_ms, _WHY, older=same)
    # In a table with positions what is not in it counts as added to the hub, and would be read from its first event.
    unknown = [each for each in partitions if each not in memory.places and each not in found.leases]
    said += [Restore(by=by, at_ms=at_ms, partition=each, epoch=0, checkpoint=None) for each in unknown]
    outcome = commit_and_record(store, found, said, _LOG.warning)
    for partition, (first, last) in skipped(memory, outcome.after).items():
        _LOG.warning("partition %s: events %d to %d are skipped: the table goes on after them", partition, first, last)
    if unknown:
        _LOG.warning("partitions %s are not known: they begin at startingPosition", ", ".join(unknown))
