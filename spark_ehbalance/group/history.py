"""The history of a group: every change of owner and every command of an operator, but no renewals or checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.group.changes import (
    Claim,
    Drain,
    HandOver,
    LeaseTransition,
    Outcome,
    Release,
    Restore,
    Stall,
    Take,
    Transition,
)
from spark_ehbalance.group.commands import MoveTo, PartitionCommand, Seek, Unpin
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """One row of the history: `partition` changed from `owner_before` to `owner` (None: no owner) at `epoch`.

    `event` is the class name of the transition, `at_ms` is the time on the wall clock of its author, `by`,
    `sequence_number` is the checkpoint's, and `why` contains an operator's command and reason. A command by itself does
    not change the owner, so `owner_before` and `owner` are then the same. If an operator drains a member, both owners
    are that member, and `partition` and `epoch` are None."""

    at_ms: int
    partition: str | None
    event: str
    owner_before: str | None
    owner: str | None
    epoch: int | None
    sequence_number: int | None
    by: str
    why: str | None = None


def ownership_changes(outcome: Outcome) -> list[OwnershipChange]:
    """The history rows of the accepted transitions of `outcome`."""
    changes = []
    for transition in outcome.accepted:
        if isinstance(transition, (Take, HandOver, Release, Stall, Restore, PartitionCommand)):
            changes.append(_change(outcome.before, transition, outcome.after))
        elif isinstance(transition, Drain) and transition.member != transition.by.id:
            changes.append(_drained(transition))
    return changes


def _change(
    before: Snapshot, transition: LeaseTransition | Stall | Restore | PartitionCommand, after: Snapshot
) -> OwnershipChange:
    earlier, lease = before.leases.get(transition.partition), after.leases[transition.partition]
    return OwnershipChange(
        at_ms=transition.at_ms,
        partition=transition.partition,
        event=type(transition).__name__,
        owner_before=earlier.owner if earlier else None,
        owner=lease.owner,
        epoch=lease.epoch,
        sequence_number=lease.checkpoint.sequence_number if lease.checkpoint else None,
        by=transition.by.id,
        why=_order_text(transition) or _by_pin(earlier, lease) or _by_force(earlier, transition),
    )


def _order_text(transition: Transition) -> str | None:
    """Describes an operator's command."""
    if isinstance(transition, MoveTo):
        return _with_reason(f"to {transition.to}", transition.why)
    if isinstance(transition, Seek):
        return _with_reason(f"to sequence number {transition.position.next}", transition.why)
    return transition.why or None if isinstance(transition, (Restore, Unpin)) else None


def _by_pin(before: Lease | None, after: Lease) -> str | None:
    """Describes the pin that caused a move."""
    pin = before.pin if before and before.owner != after.owner else None
    return _with_reason(f"requested by {pin.by}", pin.why) if pin and pin.to == after.owner else None


def _by_force(before: Lease | None, transition: Transition) -> str | None:
    """Why a lease was claimed although another member owned it."""
    if not isinstance(transition, Claim) or before is None or before.owner in (None, transition.by.id):
        return None
    if before.counter == transition.unchanged_counter:
        return "no heartbeat for the lease duration"
    return "not handed over in time"


def _drained(drain: Drain) -> OwnershipChange:
    return OwnershipChange(
        at_ms=drain.at_ms,
        partition=None,
        event="Drain",
        owner_before=drain.member,
        owner=drain.member,
        epoch=None,
        sequence_number=None,
        by=drain.by.id,
        why=_with_reason("may claim partitions again", drain.why) if drain.undo else drain.why or None,
    )


def _with_reason(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what
