"""`ehbalance transfer`, `pin`, `unpin`, `drain` and `seek`: an operator's orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

import typer

from spark_ehbalance.cli.common import check_group, check_hub_of, hub_states, now_ms, operator, order, say
from spark_ehbalance.cli.migration import in_parallel, print_rewound
from spark_ehbalance.cli.options import HubOptions, LeaseTable, StorageOptions, Why
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import PartitionAddress
from spark_ehbalance.hub.resolve import resolve
from spark_ehbalance.leases.orders import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Drain, NoteHub, Transition
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.start_checks import CLOCKS_DIFFER
from spark_ehbalance.values.defaults import HANDOVER_TIMEOUT
from spark_ehbalance.values.parsing import duration_text, parse_duration
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.secrets import shown
from spark_ehbalance.values.starting_positions import UnresolvedPosition, parse_position

Partition = Annotated[str, typer.Argument(help="The partition's id.")]

#: As the option `handoverTimeout`.
_HANDOVER_TIMEOUT = duration_text(HANDOVER_TIMEOUT)

#: Why operators' orders cannot be given to consumers of the Azure SDKs.
_LACKS = "which keeps no operators' orders: its consumers would not look for any"


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """Which partition is to go to which member."""

    partition: Partition
    to: Annotated[str, typer.Option("--to", help="The owner id of a member, as `status` shows it.")]
    why: Why = ""
    handover_timeout: Annotated[str, typer.Option(help="How long the owner may take to hand it over.")] = (
        _HANDOVER_TIMEOUT
    )

    def order(self, kind: type[Transfer | PinTo], lease_table: str, storage: StorageOptions) -> str:
        """Commit the order. Returns how the partition gets to the member, for the message."""
        try:
            timeout_ms = round(1000 * parse_duration(self.handover_timeout))
        except ValueError as allowed:
            wrong = f"--handover-timeout={shown(self.handover_timeout)} is wrong"
            raise OptionError(f"{wrong}: allowed is {allowed}") from None
        move = kind(
            by=operator(), at_ms=now_ms(), partition=self.partition, to=self.to, why=self.why, timeout_ms=timeout_ms
        )
        lease = _ordered(move, lease_table, storage).leases[self.partition]
        if lease.owner == self.to:
            return ", which owns it"
        if lease.handover is not None and lease.handover.to == self.to:
            return f": {lease.owner} was asked to hand it over within {lease.handover.timeout_ms / 1000:g} s"
        if lease.owner is None:
            return ", which takes it with its next decision"
        return f", which takes it from {lease.owner} when it is active and has room"


def transfer(lease_table: LeaseTable, move: MoveOptions, storage: StorageOptions) -> None:
    """Move a partition to a member, once: its owner finishes the running batch and hands it over.

    The strategy may move it again after ten lease durations.
    """
    way = move.order(Transfer, lease_table, storage)
    say(f"Partition {move.partition} is to go to {move.to}{way}.")


def pin(lease_table: LeaseTable, move: MoveOptions, storage: StorageOptions) -> None:
    """Keep a partition with a member while that member is alive, until you unpin it."""
    way = move.order(PinTo, lease_table, storage)
    say(f"Partition {move.partition} is pinned to {move.to}{way}.")


def unpin(lease_table: LeaseTable, partition: Partition, storage: StorageOptions, why: Why = "") -> None:
    """Let the strategy decide about a partition again."""
    _ordered(Unpin(by=operator(), at_ms=now_ms(), partition=partition, why=why), lease_table, storage)
    say(f"Partition {partition} is not pinned any more.")


def drain(
    lease_table: LeaseTable,
    owner: Annotated[str, typer.Argument(help="The owner id of a member, as `status` shows it.")],
    storage: StorageOptions,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take partitions again.")] = False,
    why: Why = "",
) -> None:
    """Make a member release its partitions, each after the running batch, and take no more.

    Its query keeps running without partitions: stop it when `status` shows that it has none.
    """
    _ordered(Drain(by=operator(), at_ms=now_ms(), member=owner, undo=undo, why=why), lease_table, storage)
    say(f"{owner} may take partitions again." if undo else f"{owner} is leaving.")


def seek(
    lease_table: LeaseTable,
    to: Annotated[str, typer.Option(help="earliest, latest, a sequence number, or a time.")],
    hub: HubOptions,
    storage: StorageOptions,
    partition: Annotated[str | None, typer.Argument(help="The partition's id; or give --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All partitions of the table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a query owns it.")] = False,
    why: Why = "",
) -> None:
    """Continue reading a partition at another position, forward or back.

    With --force also while a query owns it: its running batch still reaches the sink, even after a restart, unless
    another query takes the partition first; the next batch begins at the new position. Without an owner a seek takes
    effect at once: a batch that was cut short is not run again for the partition.

    Back: a Delta table that is written exactly once gets none of the events that it holds. With --all also if the table
    has the positions of an earlier hub of this name.
    """
    if everything is (partition is not None):
        raise OptionError("seek takes either a partition or --all")
    try:
        wanted = parse_position(to)
    except ValueError as allowed:
        raise OptionError(f"--to={shown(to)} is wrong: allowed is {allowed}") from None
    if isinstance(wanted, datetime) and wanted > datetime.now(timezone.utc) + CLOCKS_DIFFER:
        raise OptionError(f"--to={shown(to)} has not come yet: allowed is a time that has, or latest")
    options = hub.options(lease_table, storage)
    with storage.open(lease_table, lacks=_LACKS, identity=options.connection.identity) as store:
        found = store.read()
        epochs = _epochs(found, options, partition)
        current, states = hub_states(options, epochs)
        if not everything:
            check_hub_of(found, current, lease_table)
        positions = _resolved(options, wanted, epochs, states)
        orders: list[Transition] = [
            Seek(by=operator(), at_ms=now_ms(), partition=each, position=position, force=force, why=why)
            for each, position in positions.items()
        ]
        if everything and found.table is not None and current.created_ms is not None:
            orders.append(NoteHub(by=operator(), at_ms=now_ms(), created_ms=current.created_ms, moved=True))
        order(store, orders)
    for each, position in positions.items():
        say(f"Partition {each} continues at sequence number {position.next}.")
    print_rewound([p for p, each in positions.items() if (at := found.leases[p].checkpoint) and each.next < at.next])


def _ordered(given: Transition, lease_table: str, storage: StorageOptions) -> Snapshot:
    with storage.open(lease_table, lacks=_LACKS) as store:
        return order(store, [given])


def _epochs(snapshot: Snapshot, options: Options, partition: str | None) -> dict[str, int]:
    """The epochs of `partition`, or of all. Raises `EhBalanceError` if the table is not the group's or lacks them."""
    check_group(snapshot, options.group, str(options.lease_table))
    if not snapshot.leases:
        raise EhBalanceError("no query has read anything yet: startingPosition decides where reading begins")
    if partition is not None and partition not in snapshot.leases:
        raise EhBalanceError(f"partition {partition} is unknown: there are {', '.join(snapshot.leases)}")
    return {each: lease.epoch for each, lease in snapshot.leases.items() if partition in (None, each)}


def _resolved(
    options: Options, wanted: UnresolvedPosition, epochs: Mapping[str, int], states: Mapping[str, PartitionState]
) -> Mapping[str, Position]:
    """The position `wanted` in each partition. Raises `OptionError` if the hub does not have it."""

    def position(partition: str) -> Position:
        address, state = PartitionAddress(options.connection, options.consumer_group, partition), states[partition]
        found = resolve(wanted, address, state, options.receiver_timeout, epochs[partition])
        if not state.begin <= found.next <= state.end:
            raise OptionError(
                f"partition {partition} cannot continue at sequence number {found.next}: allowed is {state.begin} to "
                f"{state.end}, which is the next to come"
            )
        return found

    return in_parallel(position, list(epochs))
