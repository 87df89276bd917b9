"""What a lease table and its history say, as samples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Lease, Member, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.metrics import definitions as of
from spark_ehbalance.metrics.definitions import Sample, by_label, sample

#: Lease durations without a sign of life after which a member's batch is not taken for one that runs.
_SILENT = 2.0


def group_samples(snapshot: Snapshot) -> Iterator[Sample]:
    """What concerns the whole group."""
    group, leases = str(snapshot.group), snapshot.leases.values()
    renewals = [each.renewed_at_ms for each in leases if each.owner is not None]
    yield sample(of.PARTITIONS, len(leases), group)
    yield sample(of.UNOWNED, len(leases) - len(renewals), group)
    states = Counter(each.state for each in snapshot.members.values())
    yield from by_label(of.MEMBERS, {state.value: states[state] for state in MemberState}, group)
    if snapshot.lease_duration_ms is not None:
        yield sample(of.LEASE_DURATION, snapshot.lease_duration_ms / 1000, group)
    if renewals:
        yield sample(of.OLDEST_RENEWAL, min(renewals) / 1000, group)


def member_samples(snapshot: Snapshot, member: Member) -> Iterator[Sample]:
    """What the table says of a member."""
    group, owned = str(snapshot.group), len(snapshot.owned_by(member.id))
    yield sample(of.OWNED, owned, group, member.id)
    yield sample(of.MEMBER_RENEWED, member.renewed_at_ms / 1000, group, member.id)
    yield sample(of.CONNECTIONS, owned + 1, group, member.id)
    if member.load is not None:
        yield sample(of.BATCH_MEAN, member.load.batch_seconds, group, member.id)


def partition_samples(snapshot: Snapshot, leases: Iterable[Lease], now_ms: int) -> Iterator[Sample]:
    """What the table says of partitions, at that time since 1970."""
    for lease in leases:
        labels = str(snapshot.group), lease.owner or "", lease.partition
        if lease.owner is not None:
            yield sample(of.RENEWED, lease.renewed_at_ms / 1000, *labels)
        if (lag := lease.behind) is not None:
            yield sample(of.LAG_EVENTS, lag.events, *labels)
            yield sample(of.LAG_MEASURED, lag.at_ms / 1000, *labels)
            if (seconds := lag.seconds(now_ms)) is not None:
                yield sample(of.LAG_SECONDS, seconds, *labels)


def table_samples(snapshot: Snapshot, now_ms: int) -> Iterator[Sample]:
    """All that a lease table says at that time since 1970."""
    yield sample(of.STORE_AVAILABLE, 1, str(snapshot.group), "")
    yield from group_samples(snapshot)
    yield from partition_samples(snapshot, snapshot.leases.values(), now_ms)
    silent_ms = _SILENT * (snapshot.lease_duration_ms or 0)
    for member in snapshot.members.values():
        yield from member_samples(snapshot, member)
        since = snapshot.in_batch_since_ms(member)
        if since is not None and now_ms - member.renewed_at_ms <= silent_ms:
            yield sample(of.BATCH_START, since / 1000, str(snapshot.group), member.id)


def history_samples(snapshot: Snapshot, history: Iterable[OwnershipChange]) -> Iterable[Sample]:
    """What the history of the group says."""
    return by_label(of.HISTORY_MOVES, Counter(each.event for each in history), str(snapshot.group))
