"""All metrics, each declared once: names, labels and the documentation's table follow from here. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_ehbalance.text import plain

#: Where a metric comes from: the process of a query, a lease table (`ehbalance metrics`), or both.
QUERY, TABLE, BOTH = "query", "table", "both"

_GROUP = ("group",)
_MEMBER = ("group", "member")
_PARTITION = ("group", "member", "partition")


class Metric(NamedTuple):
    """A metric as Prometheus has it. One whose name ends in `_total` is a counter, which begins at 0 with its process;
    all others are gauges. `meaning` is Markdown in one line."""

    name: str
    labels: tuple[str, ...]
    source: str
    meaning: str

    @property
    def is_counter(self) -> bool:
        """Whether it only rises."""
        return self.name.endswith("_total")

    @property
    def help(self) -> str:
        """Its meaning without links."""
        return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", self.meaning)


class Sample(NamedTuple):
    """A value of `metric`; `labels` has the value of each of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def sample(metric: Metric, value: float, *labels: str) -> Sample:
    """A sample whose labels, which others may have written, are safe to show."""
    return Sample(metric, tuple(map(plain, labels)), float(value))


def by_label(metric: Metric, values: Mapping[str, float], *labels: str) -> Iterable[Sample]:
    """A sample for each of `values`, which are by the value of the metric's last label."""
    return (sample(metric, value, *labels, last) for last, value in sorted(values.items()))


def _metric(name: str, labels: tuple[str, ...], source: str, meaning: str) -> Metric:
    return Metric(f"ehbalance_{name}", labels, source, meaning)


LAG_EVENTS = _metric("lag_events", _PARTITION, BOTH, "unread events, which the sink has not finished, as last measured")
LAG_SECONDS = _metric(
    "lag_seconds", _PARTITION, BOTH, "how long the oldest unread event has waited; missing where that is not known"
)
OWNED = _metric("owned_partitions", _MEMBER, BOTH, "partitions that the member owns")
BATCH_START = _metric(
    "batch_start_timestamp_seconds",
    _MEMBER,
    BOTH,
    "when the batch that is running was begun; from a table, when that has heard of it. Missing while none runs",
)
BATCH_MEAN = _metric("batch_mean_seconds", _MEMBER, BOTH, "what a batch takes, as a moving average")
PARTITIONS = _metric("partitions", _GROUP, BOTH, "partitions in the lease table")
STALLED = _metric(
    "stalled",
    _PARTITION,
    BOTH,
    "how many times in a row the partition [stalled](operations.md#a-partition-stalls)",
)
UNOWNED = _metric("unowned_partitions", _GROUP, BOTH, "partitions that nobody owns")
MEMBERS = _metric(
    "members", ("group", "state"), BOTH, "members, `active` or `leaving`; the dead until they are forgotten"
)
LEASE_DURATION = _metric("lease_duration_seconds", _GROUP, BOTH, "the lease duration in force")
OLDEST_RENEWAL = _metric(
    "oldest_renewal_timestamp_seconds", _GROUP, BOTH, "when that owned lease was renewed that has not been for longest"
)
STORE_AVAILABLE = _metric(
    "store_available",
    _MEMBER,
    BOTH,
    "1, or 0 if the lease table could not be read or written when that was last tried; what concerns the whole group "
    "is missing then",
)
MOVES = _metric(
    "moves_total",
    ("group", "member", "reason"),
    QUERY,
    "changes of owner and orders that the member has written, by the history's `event`, such as `HandOver` or `Steal`",
)
FINDINGS = _metric(
    "findings", ("group", "code"), TABLE, "[findings](monitoring.md#findings) of `ehbalance status`, by code"
)
COMMITS = _metric("commits_total", _MEMBER, QUERY, "commits to the lease table")
CONFLICTS = _metric("commit_conflicts_total", _MEMBER, QUERY, "races that commits have lost")
EVENTS = _metric("events_total", _MEMBER, QUERY, "sequence numbers in finished batches")
HUB_AVAILABLE = _metric("hub_available", _MEMBER, QUERY, "1, or 0 if the event hub did not answer the last question")
BUSY = _metric(
    "server_busy_total",
    _MEMBER,
    QUERY,
    "questions that the hub has refused as too busy; those of workers are in the executors' logs",
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
