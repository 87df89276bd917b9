"""Metrics derived from a lease table."""

from __future__ import annotations

from spark_ehbalance.group.group_view import FINDINGS, GroupView
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Lease, Member, MemberLoad, MemberState, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.metrics.definitions import METRICS, Sample
from spark_ehbalance.metrics.table import view_samples

NOW = 1_000_000

SNAPSHOT = Snapshot(
    Group("ns", "hub", "$default"),
    leases={
        "0": Lease("0", "a", 1, 1, NOW - 7000, checkpoint=Position.before(10), lag=Lag(10, 25, NOW - 4000, NOW - 500)),
        "1": Lease("1", "a", 1, 1, NOW - 9000, checkpoint=Position.before(12), lag=Lag(10, 25, NOW - 4000, NOW - 500)),
        "2": Lease("2", None, 3, 1, NOW - 99_000, checkpoint=Position.before(5), lag=Lag(5, 5, None, NOW - 500)),
        "3": Lease("3", "b\x1b", stall_count=3),
    },
    members={
        "a": Member("a", "run-a", 1, renewed_at_ms=NOW - 7000, load=MemberLoad(1.0, 2.0, 3.5)),
        "b\x1b": Member("b\x1b", "run-b", 2, renewed_at_ms=NOW - 61_000, state=MemberState.LEAVING),
    },
    lease_duration_ms=30_000,
    queries={run: QueryRecord(run, f"run-{run}", run, batch=4, begun=5, at_ms=NOW - 8000) for run in ("a", "b")},
)


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """Labels without the group → value of a metric."""
    return {sample.labels[1:]: sample.value for sample in samples if sample.metric.name == f"ehbalance_{name}"}


def test_lag_is_reported_by_partition_and_owner() -> None:
    samples = list(view_samples(GroupView(SNAPSHOT, NOW)))
    assert {sample.labels[0] for sample in samples} == {"ns/hub/$default"}
    assert values(samples, "lag_events") == {("a", "0"): 15, ("a", "1"): 13, ("", "2"): 0}
    # Partition 1 was read since, so the time of its next event is unknown.
    assert values(samples, "lag_seconds") == {("a", "0"): 4, ("", "2"): 0}
    assert values(samples, "stalled") == {("a", "0"): 0, ("a", "1"): 0, ("", "2"): 0, ("b\\x1b", "3"): 3}


def test_group_and_members_are_reported() -> None:
    samples = list(view_samples(GroupView(SNAPSHOT, NOW)))
    assert values(samples, "partitions") == {(): 4}
    assert values(samples, "unowned_partitions") == {(): 1}
    assert values(samples, "members") == {("active",): 1, ("leaving",): 1}
    assert values(samples, "lease_duration_seconds") == {(): 30}
    assert values(samples, "oldest_renewal_timestamp_seconds") == {(): 0}
    assert values(samples, "owned_partitions") == {("a",): 2, ("b\\x1b",): 1}
    assert values(samples, "batch_mean_seconds") == {("a",): 3.5}
    # b is declared dead, so its recorded batch does not run.
    assert values(samples, "batch_start_timestamp_seconds") == {("a",): 992}


def test_findings_are_counted_by_code() -> None:
    counted = values(list(view_samples(GroupView(SNAPSHOT, NOW))), "findings")
    assert counted.keys() == {(code,) for code in FINDINGS}
    assert {code for (code,), count in counted.items() if count} == {"unowned", "stale_member", "stalled"}


def test_names_are_unique_and_help_has_no_links() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert not any("](" in metric.help for metric in METRICS)
