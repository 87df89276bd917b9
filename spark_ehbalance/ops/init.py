"""`ehbalance init`: make a group's lease table, or check the one that exists."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import NoteHub, Restore, Transition, apply
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import Edge, UnresolvedPosition
from spark_ehbalance.lease_table.contract import LeaseStore, record
from spark_ehbalance.ops.arguments import BlobNamespace, HubOptions, LeaseTable, StorageOptions
from spark_ehbalance.ops.common import check_hub_of, hub_states, now_ms, operator, say, warn
from spark_ehbalance.ops.position_file import GivenPositions, PositionFile, resolved


def init(
    lease_table: LeaseTable,
    hub: HubOptions,
    storage: StorageOptions,
    blob_namespace: BlobNamespace = None,
    positions: PositionFile = None,
) -> None:
    """Make the lease table of a group, or check the one that exists.

    A query also makes the table when it starts; this command checks the options first. With --positions its queries
    continue there, and in partitions without a position at the first retained event. Start them with new
    checkpointLocations.
    """
    given = None if positions is None else GivenPositions(positions)
    options = hub.options(lease_table, storage, blob_namespace)
    current, states = hub_states(options)
    group, identity = options.group, options.connection.identity
    with storage.open(lease_table, needs_members=given is not None, identity=identity, group=group) as store:
        exists = store.exists()
        if exists and (found := store.read()).group == group:  # `create` refuses a table of another group
            check_hub_of(found, current, lease_table)
        if given is None:
            store.create(group)
        else:
            given.check(current, [*states])
            if exists:
                raise EhBalanceError(
                    f"the lease table {lease_table} exists: allowed is a new one. `ehbalance seek {lease_table} "
                    "--positions FILE` moves the positions of an existing one"
                )
            wanted: dict[str, UnresolvedPosition] = {**dict.fromkeys(states, Edge.EARLIEST), **given.wanted([*states])}
            _create(store, group, resolved(wanted, options, states, {}, given.source), current.created_ms)
    say(
        f"The lease table {lease_table} of {group} {'is there' if exists else 'was made'}; the hub has {len(states)} "
        "partitions."
    )
    if given is not None and (unknown := [p for p in states if p not in given.wanted([*states])]):
        say(f"No position is given for partition {', '.join(unknown)}: reading begins at the first retained event.")


def _create(store: LeaseStore, group: Group, positions: Mapping[str, Position], created_ms: int | None) -> None:
    """Create the table with these positions, in one commit. Raises `EhBalanceError` if another process was faster."""
    by, at_ms, why = replace(operator(), incarnation=uuid.uuid4().hex), now_ms(), "init --positions"
    transitions: list[Transition] = [
        Restore(by=by, at_ms=at_ms, partition=partition, checkpoint=each, why=why)
        for partition, each in positions.items()
    ]
    if created_ms is not None:
        transitions.append(NoteHub(by=by, at_ms=at_ms, created_ms=created_ms))
    made = apply(Snapshot(group), transitions)
    store.create(group, made.after)
    table = store.read().table
    if table is None or table.id != by.incarnation:
        raise EhBalanceError("another process has just created the lease table: nothing was written")
    record(store, made, warn)
