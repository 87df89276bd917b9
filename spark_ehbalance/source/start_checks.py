"""How a query joins its group's lease table.

At its first start the query creates the table. At a restart it first makes sure that the table still has the progress
that the query's checkpoint records, before it reads or creates anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Protocol

from spark_ehbalance.errors import DataLossError, FencedError, OptionError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.model import Author, QueryRecord
from spark_ehbalance.leases.snapshot import OTHER_HUB_HELP, Snapshot
from spark_ehbalance.leases.transitions import NoteHub, Restore
from spark_ehbalance.source import processes
from spark_ehbalance.source.continuity import RecordedProgress, describe_loss, restore_transitions, skipped_events
from spark_ehbalance.source.offsets import HubReference, StreamOffset, group_name
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.past import (
    described_older_checkpoint,
    described_older_table,
    described_other_hub,
    earlier_run,
    last_used_number,
    other_hub_help,
    read_too_early,
    running,
)
from spark_ehbalance.stores.base import LeaseStore, commit_and_record
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: A time that is a slip, such as one of another time zone, is off by more; the clocks of machines by less.
CLOCKS_DIFFER = timedelta(minutes=5)

#: Seconds between two looks at what an earlier process does; and for how many of its lease durations, in which it shows
#: several signs of life, it is waited for.
_LOOK_INTERVAL, _PATIENCE = 0.5, 1.25

_WHY = "the lease table did not know it any more"


class Hub(Protocol):
    """What is asked of the hub; see `HubWatcher`."""

    def partition_ids(self) -> tuple[str, ...]: ...
    def states(self) -> Mapping[str, PartitionState]: ...
    def refresh(self, partitions: Iterable[str]) -> None: ...
    def offsets(self, positions: Mapping[str, int], owner_level: int) -> Mapping[str, str]: ...


def join_table(
    store: LeaseStore,
    options: Options,
    known: StreamOffset,
    recorded: RecordedProgress,
    hub: Hub,
    by: Author,
) -> None:
    """Create or check the lease table of `options`, open as `store`, before a query reads with it.

    `known` is the query's last offset, `recorded` what its checkpoint records. If the table lacks some of `recorded`,
    raises `DataLossError` before anything is created; with failOnDataLoss=false restores it.
    Raises `StoreFormatError`, `StoreUnavailableError`, and what `check_start` raises.
    """
    if known.is_initial:
        leases = store.read().leases if store.exists() else {}
        # What a table with others lacks was added to the hub, and begins at its first event.
        first = not leases or not store.capabilities.members
        states = states_at_start(options, hub).items()
        check_start(options, {p: e for p, e in states if (leases[p].checkpoint is None if p in leases else first)})
    lost = "" if known.is_initial else _lost(store, options, known, recorded)
    if lost:
        what = "Nothing was read or created. Put the table back, set leaseTable to where it is, or make"
        if not known.group:  # it has had none
            what = "Nothing was read or created. Make"
        _refuse_loss(
            options,
            f"{lost}. {what} one from the queries' checkpoints, `ehbalance positions CHECKPOINT... > p.json; "
            f"{_command(options)} --positions p.json`, and give each query a new checkpointLocation. With "
            "failOnDataLoss=false the query goes on from what its own checkpoint knows",
            f"{lost}. Going on from what this query's own checkpoint knows",
        )
    store.create(options.group)
    if lost:
        _restore(store, known, recorded, hub, by)


def states_at_start(options: Options, hub: Hub) -> Mapping[str, PartitionState]:
    """The states that `check_start` needs, and those that are known besides: of a hub with many partitions not all are
    asked for at once."""
    numbers = [p for p in hub.partition_ids() if options.starting_position.number_of(p) is not None]
    if unknown := [partition for partition in numbers if partition not in hub.states()]:
        hub.refresh(unknown)
    return hub.states()


def check_start(options: Options, states: Mapping[str, PartitionState]) -> None:
    """Check startingPosition where a first reading begins, in partitions with these `states`, and warn of a time that
    has not come. Raises `OptionError` if it is beyond a partition's last event: no event was read, so none is lost."""
    options.starting_position.check_ends({partition: state.end for partition, state in states.items()})
    times = [each for each in map(options.starting_position.of, states) if isinstance(each, datetime)]
    if times and max(times) > datetime.now(timezone.utc) + CLOCKS_DIFFER:
        _LOG.warning(
            "startingPosition=%s has not come yet: what the event hub holds now is not read, and reading begins with "
            "the next events, also with those that come before that time",
            max(times).isoformat(),
        )


def check_alone(known: StreamOffset, options: Options) -> None:
    """Raise `DataLossError` if a query without a lease table has read with one before."""
    if known.is_initial or not known.group:
        return
    lost = f"this query's checkpoint has read with {_table_of(known)}, and leaseTable is not set"
    _refuse_loss(
        options,
        f"{lost}: partitions that the checkpoint has no position of would begin at startingPosition. Set leaseTable "
        "again, give the query a new checkpointLocation, or go on with failOnDataLoss=false",
        f"{lost}. Partitions that it has no position of begin at startingPosition",
    )


def check_hub(known: StreamOffset, options: Options, found: HubReference) -> None:
    """Raise `OptionError` if the query has read another event hub than `found`, and `DataLossError` if it has read one
    that had the same name: its positions mean nothing in this one."""
    read = known.hub
    if read is None or not read.is_another(found):
        return
    if read.name != found.name:
        raise OptionError(
            f"eventHubName={options.connection.hub}: this query's checkpoint has read event hub {read.name}; set that "
            "again, or give the query a new checkpointLocation"
        )
    shared = options.lease_table is not None
    lost, help = described_other_hub("this query's checkpoint", read, found), other_hub_help(shared=shared)
    _refuse_loss(options, f"{lost}. Nothing was read. {help}", f"{lost}. Its positions are kept")


def check_past(
    store: LeaseStore,
    options: Options,
    known: StreamOffset,
    hub: HubReference,
    *,
    finished: bool,
) -> None:
    """Check that the table has positions of `hub`, wait until no other process reads with the checkpoint whose last
    offset is `known`, or with a copy of it, and check that the table knows no more of the query.

    `finished` says whether that batch is finished, by the checkpoint. Raises `FencedError` if the other process goes
    on, or has gone on after the checkpoint was read, and `DataLossError` if the table is that of another hub or if the
    checkpoint was set back.
    """
    found = store.read() if store.exists() else None
    if found is not None and found.group == options.group:  # `create` refuses a table of another group
        _check_table_hub(options, found.described_other_hub(hub.created_ms))
    found, ran = _await_earlier_run(store, options, known, found)
    older = "" if found is None else described_older_checkpoint(known, found)
    if ran is not None and (older or not finished):  # nothing was set back, and no batch has to run again
        raise FencedError(read_too_early(ran))
    _check_age(options, older)


def _await_earlier_run(
    store: LeaseStore, options: Options, known: StreamOffset, found: Snapshot | None
) -> tuple[Snapshot | None, QueryRecord | None]:
    """Wait until the process that reads with this checkpoint has ended. Returns the table then, and that process's
    record if it may have planned further batches after the checkpoint was read.

    It lives as long as this machine sees it, or else as there are signs of life in the table. One that lives although
    its query does not is about to end.
    """
    counter: object = None
    begun = since = time.monotonic()
    ran: QueryRecord | None = None
    waited = ending = False
    while found is not None and (run := earlier_run(known, found)) is not None:
        (record, member), now = run, time.monotonic()
        lives = processes.is_alive(record.process)
        patience = (member.lease_duration_ms or 0) / 1000 or options.lease_duration
        ending = lives is True and processes.has_ended_query(record.process)
        if ending:
            ran = None
        elif lives is True or counter not in (None, member.counter):
            ran = record
        if counter != member.counter:
            counter, since = member.counter, now
        if lives is False or (lives is None and now - since > patience):
            return found, ran
        if record.begun > known.batch or now - begun > _PATIENCE * patience:
            raise FencedError(running(record))
        if not waited:
            _LOG.warning(
                "this query seems to run already, as %s: waiting up to %g s for that to end", record.owner, patience
            )
        waited = True
        time.sleep(_LOOK_INTERVAL)
        found, last = store.read(), record
    return found, last if waited and not ending else None


def passed_over(known: StreamOffset, found: Snapshot) -> int:
    """Up to which batch number the query whose last offset is `known` is to read nothing, as a sink may have it."""
    until = last_used_number(known, found)
    if until > known.batch:
        _LOG.warning(
            "batches up to %d read nothing. The query's last process was killed, or its checkpoint was set back, and "
            "a sink that knows batch numbers leaves out those that it has. After a checkpoint was set back, events "
            "that the lease table had not heard of come twice", until,
        )  # fmt: skip
    return until


def _refuse_loss(options: Options, error: str, warning: str) -> None:
    """Raise `DataLossError`, or warn where loss is allowed."""
    if options.fail_on_data_loss:
        raise DataLossError(error)
    _LOG.warning("%s, because failOnDataLoss=false", warning)


def _check_table_hub(options: Options, other: str) -> None:
    if other:
        _refuse_loss(
            options,
            f"leaseTable={options.lease_table}: {other}. Nothing was read: {OTHER_HUB_HELP}, or go on with "
            "failOnDataLoss=false where they happen to be",
            f"the lease table: {other}. Its positions are kept",
        )


def _check_age(options: Options, older: str) -> None:
    if older:
        _refuse_loss(
            options,
            f"leaseTable={options.lease_table}: {older}. Sinks that know batch numbers leave out new events with the "
            "old numbers. Nothing was read. Give the query a new checkpointLocation, with which it goes on at the "
            "table's positions, or go on with failOnDataLoss=false, with which these numbers are passed over. If the "
            "sink was set back, too, `ehbalance seek` to where it ends comes before that",
            f"{older}. Going on at the table's positions",
        )


def _lost(store: LeaseStore, options: Options, known: StreamOffset, recorded: RecordedProgress) -> str:
    """What the table lacks, for a message; "" if it lacks nothing."""
    found = store.read() if store.exists() else None
    if found is not None and found.group != options.group:
        return ""  # that loses nothing: `create` raises the error for a table of another group
    lost = describe_loss(known, recorded, found) or (found and described_older_table(known, recorded, found)) or ""
    if not lost and found is not None and found.table is None and known.group != group_name(options.lease_table):
        lost = "that may be another table"  # which has no id: only the location tells them apart
    read_with = f"this query's checkpoint has read with {_table_of(known)}"
    return f"leaseTable={options.lease_table}: {lost}; {read_with}" if lost else ""


def _table_of(known: StreamOffset) -> str:
    if known.table is not None:
        return f"the lease table {known.table.location} (id {known.table.id})"
    return "a lease table" if known.group else "no lease table"


def _command(options: Options) -> str:
    group = f"--event-hub-name {options.connection.hub} --consumer-group '{options.consumer_group}'"
    return f"ehbalance init {options.lease_table} {group}"


def _restore(store: LeaseStore, known: StreamOffset, recorded: RecordedProgress, hub: Hub, by: Author) -> None:
    found, at_ms = store.read(), time.time_ns() // 1_000_000
    same = found.table is not None and found.table.covers(recorded.origins)
    restores = restore_transitions(recorded, found, by, at_ms, _WHY, older=same)
    notes = []
    if known.hub is not None and known.hub.created_ms is not None:
        notes.append(NoteHub(by=by, at_ms=at_ms, created_ms=known.hub.created_ms))
    # Without a row these would count as added to the hub later, and be read from their first event.
    unknown = [each for each in hub.partition_ids() if each not in recorded.positions and each not in found.leases]
    restores += [Restore(by=by, at_ms=at_ms, partition=each, epoch=0, checkpoint=None) for each in unknown]
    outcome = commit_and_record(store, found, [*restores, *notes], _LOG.warning)
    for partition, (first, last) in skipped_events(recorded, outcome.after).items():
        _LOG.warning("partition %s: events %d to %d are skipped: the table goes on after them", partition, first, last)
    if unknown:
        _LOG.warning("partitions %s are not known: they begin at startingPosition", ", ".join(unknown))
