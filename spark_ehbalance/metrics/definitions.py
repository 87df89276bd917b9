"""All metrics, each declared once; the table in docs/monitoring.md is generated from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_ehbalance.text import plain

#: Where a metric is available: in a query's process, from a lease table (`ehbalance metrics`), or both.
QUERY, TABLE, BOTH = "query", "table", "both"

_GROUP = ("group",)
_MEMBER = ("group", "member")
_PARTITION = ("group", "member", "partition")


class Metric(NamedTuple):
    """A Prometheus metric. If its name ends with `_total`, the metric is a counter, which begins at 0 when the process
    starts; otherwise it is a gauge. `meaning` is one line of Markdown."""

    name: str
    labels: tuple[str, ...]
    source: str
    meaning: str

    @property
    def is_counter(self) -> bool:
        """Whether the value only increases."""
        return self.name.endswith("_total")

    @property
    def help(self) -> str:
        """The meaning without links."""
        return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", self.meaning)


class Sample(NamedTuple):
    """A value of `metric` with the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def sample(metric: Metric, value: float, *labels: str) -> Sample:
    """A sample. The labels are made printable, because they may be untrusted."""
    return Sample(metric, tuple(map(plain, labels)), float(value))


def by_label(metric: Metric, values: Mapping[str, float], *labels: str) -> Iterable[Sample]:
    """A sample for each of `values`, keyed by the metric's last label."""
    return (sample(metric, value, *labels, last) for last, value in sorted(values.items()))


def _metric(name: str, labels: tuple[str, ...], source: str, meaning: str) -> Metric:
    return Metric(f"ehbalance_{name}", labels, source, meaning)


LAG_EVENTS = _metric("lag_events", _PARTITION, BOTH, "events that the sink has not processed yet, as last measured")
LAG_SECONDS = _metric("lag_seconds", _PARTITION, BOTH, "age of the oldest unread event; missing if unknown")
OWNED = _metric("owned_partitions", _MEMBER, BOTH, "owned partitions")
BATCH_START = _metric(
    "batch_start_timestamp_seconds",
    _MEMBER,
    BOTH,
    "when the running batch started; in a table's metrics, when the start was recorded. Missing while none runs",
)
BATCH_MEAN = _metric("batch_mean_seconds", _MEMBER, BOTH, "moving average of batch durations")
PARTITIONS = _metric("partitions", _GROUP, BOTH, "partitions in the lease table")
STALLED = _metric("stalled", _PARTITION, BOTH, "consecutive [stalls](operations.md#a-partition-stalls)")
UNOWNED = _metric("unowned_partitions", _GROUP, BOTH, "partitions without an owner")
MEMBERS = _metric(
    "members", ("group", "state"), BOTH, "members, `active` or `leaving`, including dead ones until removed"
)
LEASE_DURATION = _metric("lease_duration_seconds", _GROUP, BOTH, "the current lease duration")
OLDEST_RENEWAL = _metric(
    "oldest_renewal_timestamp_seconds", _GROUP, BOTH, "time of the oldest renewal of an owned lease"
)
STORE_AVAILABLE = _metric(
    "store_available",
    _MEMBER,
    BOTH,
    "1, or 0 if the last read or write of the lease table failed; the group's totals are then missing",
)
MOVES = _metric(
    "moves_total",
    ("group", "member", "reason"),
    QUERY,
    "ownership changes and operator commands written by the member; `reason` is the history's `event`, such as "
    "`HandOver`",
)
FINDINGS = _metric(
    "findings", ("group", "code"), TABLE, "[findings](monitoring.md#findings) of `ehbalance status`, by code"
)
COMMITS = _metric("commits_total", _MEMBER, QUERY, "commits to the lease table")
CONFLICTS = _metric("commit_conflicts_total", _MEMBER, QUERY, "commits that lost a race")
EVENTS = _metric("events_total", _MEMBER, QUERY, "events in finished batches, counted by sequence numbers")
HUB_AVAILABLE = _metric("hub_available", _MEMBER, QUERY, "1, or 0 if the last request to the event hub failed")
BUSY = _metric(
    "server_busy_total",
    _MEMBER,
    QUERY,
    "the planner's requests that the hub throttled; for the workers', see the executors' logs",
)

METRICS = (
    LAG_EVENTS,
    LAG_SECONDS,
    STALLED,
    OWNED,
    BATCH_START,
    BATCH_MEAN,
    EVENTS,
    MOVES,
    COMMITS,
    CONFLICTS,
    STORE_AVAILABLE,
    HUB_AVAILABLE,
    BUSY,
    PARTITIONS,
    UNOWNED,
    MEMBERS,
    LEASE_DURATION,
    OLDEST_RENEWAL,
    FINDINGS,
)
