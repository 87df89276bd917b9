"""Creates the samples of a group from its view. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from spark_ehbalance.group import group_view
from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.group.model import Lease, Member, MemberState
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.metrics import definitions as metrics
from spark_ehbalance.metrics.definitions import Sample, by_label, sample


def group_samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The samples that describe the whole group."""
    group, leases = str(snapshot.group), snapshot.leases.values()
    renewals = [lease.renewed_at_ms for lease in leases if lease.owner is not None]
    yield sample(metrics.PARTITIONS, len(leases), group)
    yield sample(metrics.UNOWNED, len(leases) - len(renewals), group)
    states = Counter(member.state for member in snapshot.members.values())
    yield from by_label(metrics.MEMBERS, {state.value: states[state] for state in MemberState}, group)
    if snapshot.lease_duration_ms is not None:
        yield sample(metrics.LEASE_DURATION, snapshot.lease_duration_ms / 1000, group)
    if renewals:
        yield sample(metrics.OLDEST_RENEWAL, min(renewals) / 1000, group)


def member_samples(snapshot: Snapshot, member: Member) -> Iterator[Sample]:
    """The samples of a member."""
    group = str(snapshot.group)
    yield sample(metrics.OWNED, len(snapshot.owned_by(member.id)), group, member.id)
    if member.load is not None:
        yield sample(metrics.BATCH_MEAN, member.load.batch_seconds, group, member.id)


def partition_samples(snapshot: Snapshot, leases: Iterable[Lease], now_ms: int) -> Iterator[Sample]:
    """The samples of partitions at `now_ms`, milliseconds since 1970."""
    for lease in leases:
        labels = str(snapshot.group), lease.owner or "", lease.partition
        yield sample(metrics.STALLED, lease.stall_count, *labels)
        if (lag := lease.current_lag) is not None:
            yield sample(metrics.LAG_EVENTS, lag.events, *labels)
            if (seconds := lag.seconds(now_ms)) is not None:
                yield sample(metrics.LAG_SECONDS, seconds, *labels)


def view_samples(view: GroupView) -> Iterator[Sample]:
    """All samples of a view. If the lease table cannot be read, only the sample that reports this."""
    snapshot, group = view.snapshot, str(view.snapshot.group)
    yield sample(metrics.STORE_AVAILABLE, not view.problem, group, "")
    if view.problem:
        return
    yield from group_samples(snapshot)
    yield from partition_samples(snapshot, snapshot.leases.values(), view.now_ms)
    for member in snapshot.members.values():
        yield from member_samples(snapshot, member)
        since = snapshot.in_batch_since_ms(member)
        if since is not None and view.is_live(member.id):
            yield sample(metrics.BATCH_START, since / 1000, group, member.id)
    counts = Counter(finding.code for finding in view.findings)
    yield from by_label(metrics.FINDINGS, {code: counts[code] for code in group_view.FINDINGS}, group)
