"""The whole state of a group as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from spark_ehbalance.leases.derived import Derived, Identity, LoadVersion
from spark_ehbalance.leases.last_changed import LastChanged
from spark_ehbalance.leases.model import Change, Lease, Member, MemberState, QueryRecord, TableIdentity
from spark_ehbalance.leases.ownership import Ownership
from spark_ehbalance.text import time_of
from spark_ehbalance.values.group import Group

#: What helps where a table has the positions of another event hub, as the end of a message.
OTHER_HUB_HELP = (
    "set a new leaseTable, with which reading begins at startingPosition, or move all positions with `ehbalance seek "
    "LEASE_TABLE --all --to earliest`"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group's state at `version` of its store. `leases` are by partition, in partition order, `members` by id.
    `table` is None if no partition was ever added, and in tables of earlier versions. `lease_duration_ms` is the
    duration that all members are to use; None: not said, and each uses the one that it is configured with. `queries`
    are by lineage.

    `derived` caches what is computed from the rest. It is not compared, and `dataclasses.replace` starts it anew.
    """

    group: Group
    version: int = 0
    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    table: TableIdentity | None = None
    lease_duration_ms: int | None = None
    queries: Mapping[str, QueryRecord] = field(default_factory=lambda: MappingProxyType({}))
    derived: Derived = field(default_factory=Derived, init=False, compare=False, repr=False)

    def after(self, change: Change) -> Snapshot:
        """The state after `change`, with the same version: a store counts it up once it has written the state."""
        after = Snapshot(
            self.group,
            self.version,
            change.leases,
            change.members,
            change.table,
            change.lease_duration_ms,
            change.queries,
        )
        after.derived.follow(self.derived, self.ownership, change)
        return after

    def written_as(self, version: int) -> Snapshot:
        """The same state under another version."""
        same = Snapshot(
            self.group, version, self.leases, self.members, self.table, self.lease_duration_ms, self.queries
        )
        same.derived.copy(self.derived)
        return same

    def with_last_changed(self, last_changed: LastChanged) -> Snapshot:
        """The same state as the first of a chain whose snapshots keep a last-changed index, beginning with this one."""
        first = self.written_as(self.version)
        first.derived.last_changed = last_changed
        return first

    @property
    def last_changed(self) -> LastChanged | None:
        """The last-changed index, where the chain of snapshots keeps it; `apply` does, reading a table does not."""
        return self.derived.last_changed

    @property
    def ownership(self) -> Ownership:
        """Who owns what: the same object in all versions of a chain until any of it changes."""
        ownership = self.derived.ownership
        if ownership is None:
            ownership = self.derived.ownership = Ownership.of(self.leases, self.members)
        return ownership

    @property
    def load_version(self) -> LoadVersion:
        """The version of all loads: the same object in all versions of a chain until any of them changes."""
        return self.derived.load_version

    @property
    def member_ids(self) -> frozenset[str]:
        """All members' ids."""
        return self.derived.by_ownership.get("member ids", lambda: frozenset(self.members))

    @property
    def leader(self) -> str | None:
        """The active member that joined first; it does the group's housekeeping. There is no election: every write is
        a compare-and-swap, so two members that both act as leader do no harm."""
        return self.derived.by_ownership.get("leader", self._leader)

    def _leader(self) -> str | None:
        return oldest_active(self.members.values())

    def described_other_hub(self, created_ms: int | None) -> str:
        """How the hub that was created then is another one than that whose positions the table has, as a clause for a
        message; "" if it is not. A time that is not known tells nothing."""
        known = self.table.hub_created_ms if self.table else None
        if known is None or created_ms is None or known == created_ms:
            return ""
        return (
            f"it has the positions of event hub {self.group.hub} of {self.group.namespace}, made {time_of(known)}, and "
            f"this one was made {time_of(created_ms)}: it was made anew, or is another one, with other events"
        )

    def covers(self, partitions: tuple[str, ...]) -> bool:
        """Whether there is a lease for each of `partitions`."""
        known = self.derived.by_ownership
        return known.get("covers", lambda: self.leases.keys() >= set(partitions), Identity(partitions))

    def owned_by(self, member: str) -> list[Lease]:
        """The leases of `member`, live or expired, in partition order."""
        return [self.leases[partition] for partition in self.ownership.owned.get(member, ())]


def oldest_active(members: Iterable[Member]) -> str | None:
    """The id of the active one of `members` that joined first."""
    active = [member for member in members if member.state is MemberState.ACTIVE]
    return min(active, key=lambda member: (member.joined, member.id)).id if active else None
