"""The whole state of a group as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Lease, Member, MemberState, QueryRecord, TableIdentity
from spark_ehbalance.group.ownership import Ownership


@dataclass(frozen=True)
class Snapshot:
    """A group's state at `version` of its store. `leases` are keyed by partition, in partition order; `members` are
    keyed by id, and `queries` by lineage. `table` is None if no partition was ever added, and in stores that keep no
    identity. `lease_duration_ms` is the duration that all members use; if it is None, each member uses its configured
    one."""

    group: Group
    version: int = 0
    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    table: TableIdentity | None = None
    lease_duration_ms: int | None = None
    queries: Mapping[str, QueryRecord] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def ownership(self) -> Ownership:
        """The index of leases by owner."""
        return Ownership.from_rows(self.leases, self.members)

    @cached_property
    def leader(self) -> str | None:
        """The active query that joined first or, if there is none, the active consumer that joined first. The leader
        does the group's housekeeping. No election is needed: every write is a compare-and-swap, so it is safe even if
        two members act as leader."""
        return oldest_active(self.members.values())

    @property
    def latest_ms(self) -> int | None:
        """The meaning of `latest` for the whole group; None before the group's first start, or if the store keeps no
        identity."""
        return self.table.latest_ms if self.table else None

    def running_query(self, member: Member) -> QueryRecord | None:
        """The query that runs as `member`; None for a consumer."""
        return next((query for query in self.queries.values() if query.run == member.incarnation), None)

    def in_batch_since_ms(self, member: Member) -> int | None:
        """When the member's batch in progress was recorded; None if its last recorded batch has ended."""
        query = self.running_query(member)
        return query.at_ms if query is not None and query.begun > query.batch else None

    def owned_by(self, member: str) -> list[Lease]:
        """The leases of `member`, live or expired, in partition order."""
        return [self.leases[partition] for partition in self.ownership.owned.get(member, ())]


def oldest_active(members: Iterable[Member]) -> str | None:
    """The id of the active member that joined first, or None. Consumers (members without a strategy) come after all
    queries."""
    active = [(not row.strategy, row.joined, row.id) for row in members if row.state is MemberState.ACTIVE]
    return min(active)[2] if active else None
