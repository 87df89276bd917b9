"""Operators' commands for partitions: transfer, pin, unpin and seek. `Drain`, which members also use, is in
`changes`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.model import Handover, Lease, Pin
from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.group.working_copy import WorkingCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommand(Transition):
    """A command for one partition, valid in any epoch. The operator need not be a member. `why` is the operator's
    reason. The reason for a rejection states what is allowed."""

    partition: str
    why: str = ""

    def rejection(self, state: WorkingCopy) -> str | None:
        lease = state.leases.get(self.partition)
        if lease is None:
            known = ", ".join(sorted(state.leases, key=partition_order)) or "none"
            return f"partition {self.partition} is unknown; known partitions: {known}"
        return self.why_invalid(lease, state)

    def carry_out(self, state: WorkingCopy) -> None:
        state.leases[self.partition] = self.after(state.leases[self.partition], state)

    @abstractmethod
    def why_invalid(self, lease: Lease, state: WorkingCopy) -> str | None:
        """The reason why this command is invalid for `lease`; None if it is valid."""

    @abstractmethod
    def after(self, lease: Lease, state: WorkingCopy) -> Lease:
        """The lease after this command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTo(PartitionCommand):
    """Pin or transfer the partition to the member `to`: if the partition has an owner, request a handover within
    `timeout_ms`; otherwise, leave the partition for that member to claim."""

    to: str
    timeout_ms: int

    def _pinned(self, lease: Lease, state: WorkingCopy, pin: Pin) -> Lease:
        pinned = replace(lease, pin=pin)
        if lease.owner == self.to:
            return replace(pinned, handover=None)
        pending = lease.handover is not None and lease.handover.to == self.to
        if lease.owner is None or pending or not state.is_active(self.to) or state.full(self.to, self.partition):
            return pinned
        return replace(pinned, handover=Handover(self.to, self.timeout_ms, self.at_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class PinTo(MoveTo):
    """Move the partition to the member `to` as soon as that member has room, and keep it there, whatever the strategy
    decides."""

    def why_invalid(self, lease: Lease, state: WorkingCopy) -> str | None:
        if self.to not in state.members:
            return state.unknown_member(self.to)
        pinned = lease.pin is not None and lease.pin.to == self.to and not lease.pin.transfer
        return f"partition {self.partition} is already pinned to {self.to}" if pinned else None

    def after(self, lease: Lease, state: WorkingCopy) -> Lease:
        return self._pinned(lease, state, Pin(self.to, self.by.id, self.why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(MoveTo):
    """Move the partition to the active member `to`, once. A pin marked as a transfer keeps the partition there until a
    member removes the pin (`EndTransfer`)."""

    def why_invalid(self, lease: Lease, state: WorkingCopy) -> str | None:
        pin = lease.pin
        if not state.is_active(self.to):
            active = ", ".join(id for id in sorted(state.members) if state.is_active(id))
            return f"{self.to} is not an active member; active members: {active or 'none'}"
        if lease.owner == self.to:
            return f"partition {self.partition} is already owned by {self.to}"
        if pin is not None and not pin.transfer:
            return f"partition {self.partition} is pinned to {pin.to}, so remove that pin first, or change it"
        return state.full(self.to, self.partition)

    def after(self, lease: Lease, state: WorkingCopy) -> Lease:
        return self._pinned(lease, state, Pin(self.to, self.by.id, self.why, transfer=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin(PartitionCommand):
    """Let the strategy decide about the partition again. A pending handover continues."""

    def why_invalid(self, lease: Lease, state: WorkingCopy) -> str | None:
        if lease.pin is not None:
            return None
        pinned = ", ".join(lease.partition for lease in state.leases.values() if lease.pin) or "none"
        return f"partition {self.partition} is not pinned; pinned partitions: {pinned}"

    def after(self, lease: Lease, state: WorkingCopy) -> Lease:
        return replace(lease, pin=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek(PartitionCommand):
    """Continue at `position`, forward or back.

    The epoch rises, so that late checkpoints of the last owner are rejected. With `force`, the owner keeps the lease
    and plans its next batch from `position` in the new epoch; a batch that it began earlier still runs to its end, even
    after a restart (`seek_epoch`). If the partition has no owner, an interrupted batch is not run again, because the
    last owner's tenure ends."""

    position: Position
    force: bool = False

    def why_invalid(self, lease: Lease, state: WorkingCopy) -> str | None:
        if lease.owner is None or self.force:
            return None
        return f"partition {self.partition} is owned by {lease.owner}, so stop that query first, or use --force"

    def after(self, lease: Lease, state: WorkingCopy) -> Lease:
        epoch = lease.epoch + 1
        since = lease.owned_since_ms if lease.owner is not None else 0
        released = replace(lease, handover=None, stall_count=0)
        return replace(released, checkpoint=self.position, epoch=epoch, seek_epoch=epoch, owned_since_ms=since)
