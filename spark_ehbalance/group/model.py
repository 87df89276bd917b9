"""The rows of a group's state as plain values: a `Lease` per partition and a `Member` per running source.

A *group* is one (namespace, event hub, consumer group). All values are immutable; nothing here reads a clock or does
I/O.

Times ending in `_ms` are milliseconds since 1970 by the writer's wall clock. They are informational, except that they
shorten the wait after a cold start. They are never compared between machines to decide which members are alive (see
`expiry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identifies a lease table independently of its location.

    `id` is created with the first partition, so a table that was emptied gets a new id. `hub_created_ms` is the
    creation time of the event hub whose positions the table contains; None if unknown. `latest_ms` is the time of the
    group's first start by the hub's clock; for partitions without a stored end position, `latest` means this time. It
    is None before the first start.
    """

    id: str
    hub_created_ms: int | None = None
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """A pending handover of the lease to the member `to`.

    `timeout_ms` is a duration that each member measures on its own clock, from when it first read the request.
    `requested_at_ms` only distinguishes requests.
    """

    to: str
    timeout_ms: int
    requested_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A partition's load: `rate` in events per second, `backlog` in events; both are moving averages."""

    rate: float
    backlog: float


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """A member's load, measured by its planner; all values are moving averages.

    `rate` in events per second and `backlog` in events are sums over its partitions. `batch_seconds` is the duration of
    a micro-batch.
    """

    rate: float
    backlog: float
    batch_seconds: float


@dataclass(frozen=True, slots=True)
class Pin:
    """An operator's command to keep the partition with the member `to`, in force while that member is active. `by` and
    `why` are informational. If `transfer` is true, the pin is in force only until the minimum tenure after the move
    ends, so that no strategy undoes the move immediately. A member then removes the pin.
    """

    to: str
    by: str
    why: str = ""
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """One partition's row.

    `epoch` rises by one with every change of owner and never falls; it fences stale owners in the store and, as the
    AMQP owner level, at the hub. `renewal` rises with every renewal. `checkpoint` is None until the first claim
    resolves the starting position. `owned_since_ms` identifies a tenure: it stays the same when a restarted owner
    claims its lease again. `defences` counts the races that an owner won for its own lease (strategy `race`).
    `seek_epoch` is the epoch of the last seek, or 0 if there was none. `lag` is informational. `stall_count` counts the
    stalls at this checkpoint; see `changes.Stall`.
    """

    partition: str
    owner: str | None = None
    epoch: int = 0
    renewal: int = 0
    renewed_at_ms: int = 0
    owned_since_ms: int = 0
    checkpoint: Position | None = None
    handover: Handover | None = None
    load: Load | None = None
    pin: Pin | None = None
    defences: int = 0
    seek_epoch: int = 0
    lag: Lag | None = None
    stall_count: int = 0

    @property
    def current_lag(self) -> Lag | None:
        """The last measured lag, adjusted to the current checkpoint; None if it was never measured."""
        return None if self.lag is None or self.checkpoint is None else self.lag.read_up_to(self.checkpoint.next)

    @property
    def counter(self) -> tuple[int, int]:
        """A value that changes with every renewal. If it does not change for the lease duration, the lease expires."""
        return self.epoch, self.renewal

    def still_owned(self, epoch: int, since_ms: int) -> bool:
        """Whether the owner whose tenure began at `since_ms` still owns the lease that it began to read in `epoch`. A
        seek raises the epoch too, but does not end the tenure."""
        return self.epoch == epoch or (self.epoch == self.seek_epoch and 0 < self.owned_since_ms == since_ms)

    def renewed(self, at_ms: int, checkpoint: Position | None, load: Load | None, lag: Lag | None = None) -> Lease:
        """The lease after a renewal by its owner."""
        # Not `dataclasses.replace`, because it takes three times as long and this is the most frequent operation.
        return Lease(
            self.partition,
            self.owner,
            self.epoch,
            self.renewal + 1,
            at_ms,
            self.owned_since_ms,
            checkpoint,
            self.handover,
            load,
            self.pin,
            self.defences,
            self.seek_epoch,
            lag or self.lag,
            self.stall_count_at(checkpoint),
        )

    def stall_count_at(self, checkpoint: Position | None) -> int:
        """The value of `stall_count` after the lease gets this `checkpoint`: 0 after progress, which ends a stall."""
        known = self.checkpoint
        unmoved = known is not None and checkpoint is not None and known.sequence_number == checkpoint.sequence_number
        return self.stall_count if unmoved else 0


class MemberState(str, Enum):
    """A `LEAVING` member finishes its batch, hands over its partitions and gets no new ones."""

    ACTIVE = "active"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Member:
    """One running source's row.

    `incarnation` identifies the process: of two processes with the same id, the one that joined last is the member, and
    the other's writes are rejected. `joined` orders members by age without comparing clocks. `max_owned` is the maximum
    number of partitions that the member may own; None means no limit.

    `lease_duration_ms` is the time without a renewal after which others may take its leases. `commit_ms` is the median
    duration of its commits, excluding lost races; None until measured.

    Two fields are informational: `asked_ms` is the time of Spark's last request for a batch, and `left_out` maps the
    owned partitions omitted from that batch to the reasons (see `omitted_partitions` in `query/batch_planning.py`).
    """

    id: str
    incarnation: str
    joined: int
    renewal: int = 0
    renewed_at_ms: int = 0
    started_at_ms: int = 0
    host: str = ""
    state: MemberState = MemberState.ACTIVE
    max_owned: int | None = None
    strategy: str = ""
    load: MemberLoad | None = None
    lease_duration_ms: int | None = None
    commit_ms: float | None = None
    asked_ms: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def counter(self) -> tuple[str, int]:
        """A value that changes with every heartbeat."""
        return self.incarnation, self.renewal


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """One query's row: `lineage` identifies its Spark checkpoint.

    `run` is the incarnation of the process that joined last; it is empty once that process has left. Only then is
    `begun` certain to be current. `start` counts the starts of the query. As of the run's last commit, `batch` is the
    last batch that the sink finished, `begun` is the last batch given to the sink, and `planner` is the run that
    planned `begun`. The record outlives the query, so that a stale checkpoint can be detected."""

    lineage: str
    run: str
    owner: str
    start: int = 1
    batch: int = 0
    begun: int = 0
    planner: str = ""
    at_ms: int = 0
    host: str = ""

    def is_continued_by(self, begun: int, planner: str) -> bool:
        """Whether nobody can have continued the query differently after batch `begun`, planned by the run `planner`.

        Each batch is recorded in Spark's log first, and then in the lease table. So a later batch in the log is
        evidence of another log only if the last run, which has not shut down cleanly (then `run` is empty), planned the
        last batch in the table. Until that run plans a batch, the run from which it took over can have logged more.
        """
        if self.begun == begun:
            return self.planner == planner
        return self.begun < begun and (self.run in ("", planner) or self.run != self.planner)


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a transition: a member id and its incarnation."""

    id: str
    incarnation: str
