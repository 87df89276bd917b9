"""`ehbalance init`: create a group's lease table, or check an existing one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import replace

from spark_ehbalance.clock import now_ms
from spark_ehbalance.errors import ConflictError, EhBalanceError
from spark_ehbalance.group.changes import RecordHub, Restore, Transition, apply
from spark_ehbalance.group.group_view import ranges
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import PartitionEnd, UnresolvedPosition
from spark_ehbalance.lease_table.contract import LeaseStore, record
from spark_ehbalance.ops.arguments import BlobNamespace, HubOptions, LeaseTable, StorageOptions
from spark_ehbalance.ops.common import check_hub, echo, hub_states, operator, warn
from spark_ehbalance.ops.position_file import PositionFile, PositionFileOption, resolve_targets


def init(
    lease_table: LeaseTable,
    hub: HubOptions,
    storage: StorageOptions,
    blob_namespace: BlobNamespace = None,
    positions: PositionFileOption = None,
) -> None:
    """Create the lease table of a group, or check an existing one.

    A query creates the table itself when it starts; use this command to check the options beforehand. The consumer
    group is not checked. With --positions, the queries continue at these positions, and in all other partitions at the
    first retained event. Start them with new checkpointLocations. An existing table gets these positions only if no
    query has used it.
    """
    file = None if positions is None else PositionFile(positions)
    options = hub.options(lease_table, storage, blob_namespace)
    current, states = hub_states(options)
    group, identity = options.group, options.connection.identity
    with storage.open(lease_table, needs_members=file is not None, identity=identity, group=group) as store:
        exists = store.exists()
        if exists and (snapshot := store.read()).group == group:  # if it belongs to another group, `create` rejects it
            check_hub(snapshot, current)
        if file is None:
            store.create(group)
        else:
            file.check(current, [*states])
            targets: dict[str, UnresolvedPosition] = {
                **dict.fromkeys(states, PartitionEnd.EARLIEST),
                **file.targets([*states]),
            }
            _write(store, lease_table, group, resolve_targets(targets, options, states, {}), current.created_ms)
    state = "created" if not exists else "exists" if file is None else "updated"
    echo(f"Lease table {lease_table} of {group} {state}; the hub has {len(states)} partitions.")
    if file is not None and (missing := [p for p in states if p not in file.targets([*states])]):
        echo(f"No position for {ranges(missing)}: reading will begin at the first retained event.")


def _write(
    store: LeaseStore, location: str, group: Group, positions: Mapping[str, Position], created_ms: int | None
) -> None:
    """Write `positions` in one commit, to a new table or to one that no query has used. Raises `EhBalanceError` if the
    table is in use."""
    by, at_ms, why = replace(operator(), incarnation=uuid.uuid4().hex), now_ms(), "init --positions"
    transitions: list[Transition] = [
        Restore(by=by, at_ms=at_ms, partition=partition, checkpoint=position, why=why)
        for partition, position in positions.items()
    ]
    if created_ms is not None:
        transitions.append(RecordHub(by=by, at_ms=at_ms, created_ms=created_ms))
    outcome = apply(Snapshot(group), transitions)
    store.create(group, outcome.after)
    before = store.read()
    if not (before.leases or before.members or before.queries):  # the table existed
        with contextlib.suppress(ConflictError):  # a query joined meanwhile
            store.write(before, outcome.after)
    table = store.read().table
    if table is None or table.id != by.incarnation:
        raise EhBalanceError("EHB_LEASE_TABLE_EXISTS", location=location)
    record(store, outcome, warn)
