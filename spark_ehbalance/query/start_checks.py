"""Checks made when a query starts, before anything is read: lease table, event hub and starting position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, Protocol

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.query.consistency import mismatch
from spark_ehbalance.query.offsets import HubReference, StreamOffset
from spark_ehbalance.query.options import Options
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Tolerated clock skew. A time in the wrong time zone differs by more.
CLOCK_TOLERANCE = timedelta(minutes=5)


class StartHub(Protocol):
    """The part of `HubWatcher` that the start checks use."""

    def partition_ids(self) -> tuple[str, ...]: ...
    def request_states(self, partitions: Iterable[str]) -> Mapping[str, PartitionState]: ...
    def latest_ends(self, partitions: Iterable[str]) -> Mapping[str, Position]: ...


class JoinedTable(NamedTuple):
    """A lease table and, at the group's first start, the ends of the partitions in which reading starts at `latest`."""

    content: Snapshot
    latest_ends: Mapping[str, Position]


def join_table(
    store: LeaseStore, options: Options, known: StreamOffset, found: HubReference, hub: StartHub
) -> JoinedTable:
    """The lease table in `store`, checked and, on a first start, created.

    `known` is the query's last offset, `found` identifies the `hub`. Raises `StoreFormatError`,
    `StoreUnavailableError`, `HubUnavailableError`, and the errors of `check_consistency` and `check_start`.
    """
    table: Snapshot | None = None
    ends: Mapping[str, Position] = {}
    if store.exists():
        store.create(options.group)  # raises an error for the table of another group
        table = store.read()
    check_consistency(options, known, table, found)
    if known.is_initial:
        leases = table.leases if table else {}
        # Partitions missing from a table with leases were added to the hub later, and are read from their first event.
        first = not leases or not store.capabilities.members
        unread = [p for p in hub.partition_ids() if (leases[p].checkpoint is None if p in leases else first)]
        states = states_at_start(options, hub)
        check_start(options, {p: states[p] for p in unread if p in states})
        if known.first_start is None and (table is None or table.latest_ms is None):
            ends = hub.latest_ends(unread)
    store.create(options.group)
    return JoinedTable(table or store.read(), ends)


def check_consistency(options: Options, known: StreamOffset, table: Snapshot | None, found: HubReference) -> None:
    """Raise `DataLossError` if the checkpoint that ends with `known`, the lease `table` and the hub do not belong
    together."""
    if wrong := mismatch(known, table, found, options.lease_table):
        raise wrong


def states_at_start(options: Options, hub: StartHub) -> Mapping[str, PartitionState]:
    """The states that `check_start` needs, plus any that are already known: requesting all of a large hub would take
    too long."""
    numbers = [p for p in hub.partition_ids() if options.starting_position.first_sequence_number(p) is not None]
    return hub.request_states(numbers)


def check_start(options: Options, states: Mapping[str, PartitionState]) -> None:
    """Check startingPosition for the partitions in `states`, which are read for the first time, and warn if it is in
    the future. If it is beyond a partition's last event, raises `OptionError`, not `DataLossError`, because nothing has
    been read yet."""
    options.starting_position.check_ends({partition: state.end for partition, state in states.items()})
    times = [position for position in map(options.starting_position.position, states) if isinstance(position, datetime)]
    if times and max(times) > datetime.now(timezone.utc) + CLOCK_TOLERANCE:
        _LOG.warning(
            "startingPosition=%s is in the future: the event hub's existing events are skipped, and reading starts "
            "with the next event, even if it arrives before that time",
            max(times).isoformat(),
        )
