"""The history of a group: every change of ownership, for people, reports and audits. Renewals are not in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_ehbalance.leases.model import Snapshot
from spark_ehbalance.leases.transitions import Claim, HandOver, LeaseTransition, Rejected, Release, Steal, Transition


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """`partition` went from `owner_before` to `owner` (None: nobody) with `epoch`, by `event`, a transition's name.

    `at_ms` is the wall clock of `by`, who wrote it; `sequence_number` that of the last finished event, `why` an
    operator's reason.
    """

    at_ms: int
    partition: str
    event: str
    owner_before: str | None
    owner: str | None
    epoch: int
    sequence_number: int | None
    by: str
    why: str | None = None


def ownership_changes(
    before: Snapshot, said: Iterable[Transition], rejected: Iterable[Rejected], after: Snapshot
) -> list[OwnershipChange]:
    """What changed hands when `said`, less what was `rejected`, made `after` out of `before`."""
    refused = {id(each.transition) for each in rejected}
    return [
        _change(before, transition, after)
        for transition in said
        if isinstance(transition, (Claim, Steal, HandOver, Release)) and id(transition) not in refused
    ]


def _change(before: Snapshot, transition: LeaseTransition, after: Snapshot) -> OwnershipChange:
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
    )
