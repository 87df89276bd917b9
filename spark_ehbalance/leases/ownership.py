"""Who owns what: an index of a group's leases and members that leaves out their signs of life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.leases.model import Change, Handover, Lease, Member, MemberState, Pin
from spark_ehbalance.values.position import partition_order

#: A member's id, incarnation and state.
MemberStatus = tuple[str, str, MemberState]


@dataclass(frozen=True, slots=True)
class Ownership:
    """`owned` maps each owner to its partitions, live or expired, in partition order; None maps to those without an
    owner. `pending` maps partitions to their pending handovers, `pins` to operators' pins and transfers.
    """

    owned: Mapping[str | None, tuple[str, ...]]
    pending: Mapping[str, Handover]
    pins: Mapping[str, Pin]
    members: frozenset[MemberStatus]

    @classmethod
    def of(cls, leases: Mapping[str, Lease], members: Mapping[str, Member]) -> Ownership:
        """The index of these rows, in one pass over them."""
        owned: dict[str | None, list[str]] = {}
        for partition, lease in leases.items():
            owned.setdefault(lease.owner, []).append(partition)
        return cls(
            {owner: tuple(partitions) for owner, partitions in owned.items()},
            {partition: lease.handover for partition, lease in leases.items() if lease.handover},
            {partition: lease.pin for partition, lease in leases.items() if lease.pin},
            _statuses(members),
        )

    def after(self, change: Change) -> Ownership:
        """The index after `change`: the same object if the change is not about anything that the index holds."""
        owned = self._owned_after(change)
        handovers: dict[str, Handover | None] = {}
        pins: dict[str, Pin | None] = {}
        for partition, old in change.leases_before.items():
            new = change.leases[partition]
            if new.handover != (old and old.handover):
                handovers[partition] = new.handover
            if new.pin != (old and old.pin):
                pins[partition] = new.pin
        members = self._members_after(change)
        if owned is self.owned and not handovers and not pins and members is self.members:
            return self
        return Ownership(
            owned,
            {partition: handover for partition, handover in {**self.pending, **handovers}.items() if handover},
            {partition: pin for partition, pin in {**self.pins, **pins}.items() if pin},
            members,
        )

    def _owned_after(self, change: Change) -> Mapping[str | None, tuple[str, ...]]:
        lost: dict[str | None, set[str]] = {}
        gained: dict[str | None, list[str]] = {}
        for partition, old in change.leases_before.items():
            new = change.leases[partition]
            if old is not None and old.owner == new.owner:
                continue
            gained.setdefault(new.owner, []).append(partition)
            if old is not None:
                lost.setdefault(old.owner, set()).add(partition)
        if not gained:
            return self.owned
        owned = dict(self.owned)
        for owner, partitions in lost.items():
            owned[owner] = tuple(partition for partition in owned[owner] if partition not in partitions)
        for owner, more in gained.items():
            owned[owner] = tuple(sorted((*owned.get(owner, ()), *more), key=partition_order))
        return {owner: partitions for owner, partitions in owned.items() if partitions}

    def _members_after(self, change: Change) -> frozenset[MemberStatus]:
        before = change.members_before
        if any(_status(change.members.get(id)) != _status(member) for id, member in before.items()):
            return _statuses(change.members)
        return self.members


def _status(member: Member | None) -> MemberStatus | None:
    return None if member is None else (member.id, member.incarnation, member.state)


def _statuses(members: Mapping[str, Member]) -> frozenset[MemberStatus]:
    return frozenset((member.id, member.incarnation, member.state) for member in members.values())
