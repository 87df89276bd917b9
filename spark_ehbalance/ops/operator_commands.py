"""Operator commands: `ehbalance transfer`, `pin`, `drain` and `seek`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Annotated

import typer

from spark_ehbalance.clock import now_ms
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.group.changes import Drain, RecordHub, Transition
from spark_ehbalance.group.commands import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.defaults import HANDOVER_TIMEOUT
from spark_ehbalance.group.group_view import ranges
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import UnresolvedPosition, parse_position
from spark_ehbalance.group.working_copy import WorkingCopy
from spark_ehbalance.ops.arguments import HubOptions, LeaseTable, Reason, StorageOptions
from spark_ehbalance.ops.common import check_group, check_hub, commit_command, echo, hub_states, operator
from spark_ehbalance.ops.position_file import PositionFile, PositionFileOption, resolve_targets
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.start_checks import CLOCK_TOLERANCE
from spark_ehbalance.settings.parsing import duration_text, parse_duration
from spark_ehbalance.settings.secrets import redacted

Partition = Annotated[str, typer.Argument(help="The partition's id.")]

_HANDOVER_TIMEOUT = duration_text(HANDOVER_TIMEOUT)

_MEMBER = "A live member's id, as in `status`."

HandoverTimeout = Annotated[str, typer.Option(help="Time for the handover.")]


def transfer(
    lease_table: LeaseTable,
    partition: Partition,
    to: Annotated[str, typer.Option("--to", help=_MEMBER)],
    storage: StorageOptions,
    why: Reason = "",
    handover_timeout: HandoverTimeout = _HANDOVER_TIMEOUT,
) -> None:
    """Move a partition to a member once.

    The current owner first finishes its running batch. After ten lease durations, the strategy may move the partition
    again.
    """
    state = _move(Transfer, lease_table, storage, partition, to, why, handover_timeout)
    echo(f"Partition {partition} moves to {to}{state}.")


def pin(
    lease_table: LeaseTable,
    partition: Partition,
    storage: StorageOptions,
    to: Annotated[str | None, typer.Option("--to", help=_MEMBER)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
    why: Reason = "",
    handover_timeout: HandoverTimeout = _HANDOVER_TIMEOUT,
) -> None:
    """Keep a partition with a member as long as the member is live."""
    _check_exactly_one("pin", {"--to": to is not None, "--remove": remove})
    if to is None:
        _commit(Unpin(by=operator(), at_ms=now_ms(), partition=partition, why=why), lease_table, storage)
        echo(f"Partition {partition} is no longer pinned.")
        return
    state = _move(PinTo, lease_table, storage, partition, to, why, handover_timeout)
    echo(f"Partition {partition} is pinned to {to}{state}.")


def drain(
    lease_table: LeaseTable,
    owner: Annotated[str, typer.Argument(help=_MEMBER)],
    storage: StorageOptions,
    undo: Annotated[bool, typer.Option("--undo", help="Let the member claim partitions again.")] = False,
    why: Reason = "",
) -> None:
    """Make a member release its partitions and claim no more.

    The member first finishes its running batch. The query keeps running without partitions; stop it when `status` shows
    that it owns none.
    """
    _commit(Drain(by=operator(), at_ms=now_ms(), member=owner, undo=undo, why=why), lease_table, storage, owner)
    echo(f"{owner} may claim partitions again." if undo else f"{owner} is leaving.")


def seek(
    lease_table: LeaseTable,
    hub: HubOptions,
    storage: StorageOptions,
    to: Annotated[str | None, typer.Option(help="earliest, latest, a sequence number or a time.")] = None,
    partition: Annotated[str | None, typer.Argument(help="The partition's id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Seek in all partitions.")] = False,
    positions: PositionFileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Seek in owned partitions too.")] = False,
    why: Reason = "",
) -> None:
    """Move the positions of partitions forward or back.

    An owned partition requires --force. The owner's running batch still reaches the sink, even if the query restarts,
    unless another query claims the partition first. The next batch begins at the new position. In an unowned partition,
    the seek takes effect at once, and an interrupted batch is not run again.

    After seeking back, no event is written twice to a Delta table with exactly-once writes. With --all, you can also
    seek if the hub was recreated under the same name.
    """
    has_file = positions is not None
    _check_exactly_one("seek", {"PARTITION": partition is not None, "--all": everything, "--positions": has_file})
    _check_exactly_one("seek", {"--to": to is not None, "--positions": has_file})
    file = None if positions is None else PositionFile(positions)
    options = hub.options(lease_table, storage)
    with storage.open(lease_table, needs_members=True, identity=options.connection.identity) as store:
        before = store.read()
        epochs = _epochs(before, options, partition)
        current, states = hub_states(options, epochs)
        if not everything:
            check_hub(before, current)
        if file is not None:
            file.check(current, [*states])
        requested = file.targets([*states]) if file else dict.fromkeys(epochs, _position(str(to)))
        targets = resolve_targets(requested, options, states, epochs)
        transitions: list[Transition] = [
            Seek(by=operator(), at_ms=now_ms(), partition=id, position=target, force=force, why=why)
            for id, target in targets.items()
        ]
        if everything and before.table is not None and current.created_ms is not None:
            transitions.append(RecordHub(by=operator(), at_ms=now_ms(), created_ms=current.created_ms, moved=True))
        commit_command(store, transitions, {before.leases[partition].owner for partition in targets})
    for id, target in targets.items():
        echo(f"Partition {id} continues at sequence number {target.next}.")
    if not targets:
        echo("The file contains no positions, so nothing was changed.")
    if back := [p for p, target in targets.items() if (at := before.leases[p].checkpoint) and target.next < at.next]:
        echo(
            f"Events of {ranges(back)} will be read again. A table written exactly once (once, "
            "write_once) skips events up to its last one: use spark_ehbalance.merge, or a different source."
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
    """Commit the move. Returns a clause about the move's progress, for the end of the command's message."""
    option, value = "--handover-timeout", redacted(handover_timeout)
    try:
        timeout_ms = round(1000 * parse_duration(handover_timeout))
    except ValueError as allowed:
        raise OptionError("EHB_OPTION_INVALID", option=option, value=value, allowed=allowed) from None
    move = kind(by=operator(), at_ms=now_ms(), partition=partition, to=to, why=why, timeout_ms=timeout_ms)
    after = _commit(move, lease_table, storage, to)
    lease, state = after.leases[partition], WorkingCopy.from_snapshot(after)
    if lease.owner == to:
        return ", which owns it"
    if lease.handover is not None and lease.handover.to == to:
        return f": {lease.owner} hands it over within {lease.handover.timeout_ms / 1000:g} s"
    if lease.owner is not None:
        return f", which takes the partition from {lease.owner} once active and below its limit"
    is_ready = state.is_active(to) and not state.full(to, partition)
    return f", which claims it {'in its next cycle' if is_ready else 'once active and below its limit'}"


def _check_exactly_one(command: str, options: Mapping[str, bool]) -> None:
    """Raise `OptionError` unless exactly one of `options` is given. The values are true for the options that were
    given."""
    *first, last = options
    reason, names = f"{command} requires exactly one of these options", ", ".join(first)
    if sum(options.values()) > 1:
        raise OptionError("EHB_OPTIONS_CONFLICT", options=f"{names} and {last}", reason=reason)
    if not any(options.values()):
        raise OptionError("EHB_OPTION_REQUIRED", option=f"{names} or {last}", reason=reason)


def _position(to: str) -> UnresolvedPosition:
    try:
        position = parse_position(to)
    except ValueError as allowed:
        raise OptionError("EHB_OPTION_INVALID", option="--to", value=redacted(to), allowed=allowed) from None
    if isinstance(position, datetime) and position > datetime.now(timezone.utc) + CLOCK_TOLERANCE:
        past = "a time in the past, or latest"
        raise OptionError("EHB_OPTION_INVALID", option="--to", value=redacted(to), allowed=past)
    return position


def _commit(transition: Transition, lease_table: str, storage: StorageOptions, member: str | None = None) -> Snapshot:
    """Commit a `transition` that concerns `member`. Returns the new state."""
    with storage.open(lease_table, needs_members=True) as store:
        return commit_command(store, [transition], [member])


def _epochs(snapshot: Snapshot, options: Options, partition: str | None) -> dict[str, int]:
    """The epoch of `partition`, or of all partitions. Raises `EhBalanceError` if the table lacks the partition or
    belongs to another group."""
    check_group(snapshot, options.group, str(options.lease_table))
    if not snapshot.leases:
        reason = "no query has read anything yet, so set startingPosition or run `ehbalance init --positions FILE`"
        raise EhBalanceError("EHB_COMMAND_REJECTED", reason=reason)
    if partition is not None and partition not in snapshot.leases:
        reason = f"partition {partition} is unknown; the table has {', '.join(snapshot.leases)}"
        raise EhBalanceError("EHB_COMMAND_REJECTED", reason=reason)
    return {id: lease.epoch for id, lease in snapshot.leases.items() if partition in (None, id)}
