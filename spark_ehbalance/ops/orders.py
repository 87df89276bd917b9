"""`ehbalance transfer`, `pin`, `drain` and `seek`: an operator's orders."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.group.changes import Drain, NoteHub, Transition
from spark_ehbalance.group.defaults import HANDOVER_TIMEOUT
from spark_ehbalance.group.orders import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import UnresolvedPosition, parse_position
from spark_ehbalance.ops.arguments import HubOptions, LeaseTable, StorageOptions, Why
from spark_ehbalance.ops.common import check_group, check_hub_of, hub_states, now_ms, operator, order, say
from spark_ehbalance.ops.position_file import GivenPositions, PositionFile, resolved
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.start_checks import CLOCKS_DIFFER
from spark_ehbalance.settings.parsing import duration_text, parse_duration
from spark_ehbalance.settings.secrets import shown

Partition = Annotated[str, typer.Argument(help="The partition's id.")]

#: As the option `handoverTimeout`.
_HANDOVER_TIMEOUT = duration_text(HANDOVER_TIMEOUT)


_MEMBER = "The owner id of a member, as `status` shows it."

HandoverTimeout = Annotated[str, typer.Option(help="How long the owner may take to hand it over.")]


def transfer(
    lease_table: LeaseTable,
    partition: Partition,
    to: Annotated[str, typer.Option("--to", help=_MEMBER)],
    storage: StorageOptions,
    why: Why = "",
    handover_timeout: HandoverTimeout = _HANDOVER_TIMEOUT,
) -> None:
    """Move a partition to a member, once: its owner finishes the running batch and hands it over.

    The strategy may move it again after ten lease durations.
    """
    way = _move(Transfer, lease_table, storage, partition, to, why, handover_timeout)
    say(f"Partition {partition} is to go to {to}{way}.")


def pin(
    lease_table: LeaseTable,
    partition: Partition,
    storage: StorageOptions,
    to: Annotated[str | None, typer.Option("--to", help=_MEMBER)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Let the strategy decide about it again.")] = False,
    why: Why = "",
    handover_timeout: HandoverTimeout = _HANDOVER_TIMEOUT,
) -> None:
    """Keep a partition with a member while that member is alive, until the pin is removed."""
    if remove is (to is not None):
        raise OptionError("pin takes either --to or --remove")
    if to is None:
        _ordered(Unpin(by=operator(), at_ms=now_ms(), partition=partition, why=why), lease_table, storage)
        say(f"Partition {partition} is not pinned any more.")
        return
    way = _move(PinTo, lease_table, storage, partition, to, why, handover_timeout)
    say(f"Partition {partition} is pinned to {to}{way}.")


def drain(
    lease_table: LeaseTable,
    owner: Annotated[str, typer.Argument(help=_MEMBER)],
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
    hub: HubOptions,
    storage: StorageOptions,
    to: Annotated[str | None, typer.Option(help="earliest, latest, a sequence number, or a time.")] = None,
    partition: Annotated[str | None, typer.Argument(help="The partition's id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All partitions of the table.")] = False,
    positions: PositionFile = None,
    force: Annotated[bool, typer.Option("--force", help="Also while a query owns it.")] = False,
    why: Why = "",
) -> None:
    """Continue reading at another position, forward or back: one partition, or those that --positions names.

    With --force also while a query owns it: its running batch still reaches the sink, even after a restart, unless
    another query takes the partition first; the next batch begins at the new position. Without an owner a seek takes
    effect at once: a batch that was cut short is not run again for the partition.

    Back: a Delta table that is written exactly once gets none of the events that it holds. With --all also if the table
    has the positions of an earlier hub of this name.
    """
    if [everything, partition is not None, positions is not None].count(True) != 1:
        raise OptionError("seek takes one of a partition, --all and --positions")
    if (to is None) is (positions is None):
        raise OptionError("seek takes either --to or --positions")
    given = None if positions is None else GivenPositions(positions)
    options = hub.options(lease_table, storage)
    with storage.open(lease_table, needs_members=True, identity=options.connection.identity) as store:
        found = store.read()
        epochs = _epochs(found, options, partition)
        current, states = hub_states(options, epochs)
        if not everything:
            check_hub_of(found, current, lease_table)
        if given is not None:
            given.check(current, [*states])
        wanted = given.wanted([*states]) if given else dict.fromkeys(epochs, _position(str(to)))
        targets = resolved(wanted, options, states, epochs, given.source if given else f"--to={to}")
        orders: list[Transition] = [
            Seek(by=operator(), at_ms=now_ms(), partition=each, position=target, force=force, why=why)
            for each, target in targets.items()
        ]
        if everything and found.table is not None and current.created_ms is not None:
            orders.append(NoteHub(by=operator(), at_ms=now_ms(), created_ms=current.created_ms, moved=True))
        order(store, orders)
    for each, target in targets.items():
        say(f"Partition {each} continues at sequence number {target.next}.")
    if back := [p for p, each in targets.items() if (at := found.leases[p].checkpoint) and each.next < at.next]:
        say(
            f"These partitions go back, and events are read again: {', '.join(back)}. For a table that is written "
            "exactly once (once, write_once) all events up to its last one count as written, and it gets none of them: "
            "use spark_ehbalance.merge, or another source."
        )


def _move(
    kind: type[Transfer | PinTo],
    lease_table: str,
    storage: StorageOptions,
    partition: str,
    to: str,
    why: str,
    handover_timeout: str,
) -> str:
    """Commit the order. Returns how the partition gets to the member, for the message."""
    try:
        timeout_ms = round(1000 * parse_duration(handover_timeout))
    except ValueError as allowed:
        wrong = f"--handover-timeout={shown(handover_timeout)} is wrong"
        raise OptionError(f"{wrong}: allowed is {allowed}") from None
    move = kind(by=operator(), at_ms=now_ms(), partition=partition, to=to, why=why, timeout_ms=timeout_ms)
    lease = _ordered(move, lease_table, storage).leases[partition]
    if lease.owner == to:
        return ", which owns it"
    if lease.handover is not None and lease.handover.to == to:
        return f": {lease.owner} was asked to hand it over within {lease.handover.timeout_ms / 1000:g} s"
    if lease.owner is None:
        return ", which takes it with its next decision"
    return f", which takes it from {lease.owner} when it is active and has room"


def _position(to: str) -> UnresolvedPosition:
    try:
        wanted = parse_position(to)
    except ValueError as allowed:
        raise OptionError(f"--to={shown(to)} is wrong: allowed is {allowed}") from None
    if isinstance(wanted, datetime) and wanted > datetime.now(timezone.utc) + CLOCKS_DIFFER:
        raise OptionError(f"--to={shown(to)} has not come yet: allowed is a time that has, or latest")
    return wanted


def _ordered(given: Transition, lease_table: str, storage: StorageOptions) -> Snapshot:
    with storage.open(lease_table, needs_members=True) as store:
        return order(store, [given])


def _epochs(snapshot: Snapshot, options: Options, partition: str | None) -> dict[str, int]:
    """The epochs of `partition`, or of all. Raises `EhBalanceError` if the table is not the group's or lacks them."""
    check_group(snapshot, options.group, str(options.lease_table))
    if not snapshot.leases:
        raise EhBalanceError("no query has read anything yet: startingPosition decides where reading begins")
    if partition is not None and partition not in snapshot.leases:
        raise EhBalanceError(f"partition {partition} is unknown: there are {', '.join(snapshot.leases)}")
    return {each: lease.epoch for each, lease in snapshot.leases.items() if partition in (None, each)}
