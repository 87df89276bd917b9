"""An index of a group's leases by owner, which does not change with renewals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.group.model import Handover, Lease, Member, MemberState, Pin

#: A member's id, incarnation and state.
MemberStatus = tuple[str, str, MemberState]


@dataclass(frozen=True, slots=True)
class Ownership:
    """`owned` maps each owner to its partitions, whether live or expired, in partition order; the key None maps to the
    unowned partitions. `pending` maps partitions to their pending handovers, and `pins` maps them to operators' pins
    and transfers."""

    owned: Mapping[str | None, tuple[str, ...]]
    pending: Mapping[str, Handover]
    pins: Mapping[str, Pin]
    members: tuple[MemberStatus, ...]

    @classmethod
    def from_rows(cls, leases: Mapping[str, Lease], members: Mapping[str, Member]) -> Ownership:
        """The index of these rows, in one pass."""
        owned: dict[str | None, list[str]] = defaultdict(list)
        pending: dict[str, Handover] = {}
        pins: dict[str, Pin] = {}
        for partition, lease in leases.items():
            owned[lease.owner].append(partition)
            if lease.handover is not None:
                pending[partition] = lease.handover
            if lease.pin is not None:
                pins[partition] = lease.pin
        statuses = tuple([(member.id, member.incarnation, member.state) for member in members.values()])
        return cls({owner: tuple(partitions) for owner, partitions in owned.items()}, pending, pins, statuses)
