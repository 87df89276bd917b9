"""The state of a small group and its surroundings, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.expiry import CLOCK_SKEW_ALLOWANCE
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.membership import Clocks, ResumePoint
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.snapshot import Snapshot

#: The lease duration in seconds. The clock skew allowance and the step by which time passes are a third of it each.
LEASE = 3 * round(CLOCK_SKEW_ALLOWANCE)
STEP = LEASE // 3


class Violation(Exception):
    """Something that must never happen."""


class Budget(NamedTuple):
    """How often each kind of event can still happen; None means any number of times. `delays` are late answers,
    `faults` are requests that fail or whose answer is lost, and `requests` are any member's requests for a handover."""

    starts: int | None
    delays: int | None = 0
    faults: int | None = 0
    batches: int | None = 0
    requests: int | None = 0


class Process(NamedTuple):
    """A process of the member `id`. If `engine` is None, the process is not running.

    `phase` is "" if the process is idle, "read" if a snapshot is on its way to it, "write" if its commit is on its way
    to the table, and "answer" if the outcome is on its way back. `request` is that snapshot, those transitions, or that
    outcome. `batch` is the batch in flight: partition → (epoch, first event, whether a reader with a higher epoch has
    disconnected this one).
    """

    id: str
    engine: MemberEngine | None = None
    phase: str = ""
    request: Any = None
    batch: Mapping[str, tuple[int, int, bool]] | None = None


class Disk(NamedTuple):
    """A query's Spark checkpoint: how often the query has started, the batch in flight, and the progress of the last
    batch."""

    starts: int = 0
    resume: Mapping[str, ResumePoint] = {}
    progress: Mapping[str, Progress] = {}


class State(NamedTuple):
    """The state of a group. `now` is in seconds. `disks` maps members to their checkpoints.

    `stray` is a commit whose process was killed or has given it up; it can still arrive as long as the table does not
    change. `forced` contains the (partition, epoch) of leases that were claimed by force. `opened` maps partitions to
    the highest epoch of all batches, and `covered` maps partitions to the number of events that a sink contains.
    """

    now: int
    table: Snapshot
    processes: tuple[Process, ...]
    disks: Mapping[str, Disk]
    left: Budget
    stray: tuple[Transition, ...] = ()
    forced: frozenset[tuple[str, int]] = frozenset()
    opened: Mapping[str, int] = {}
    covered: Mapping[str, int] = {}

    @classmethod
    def first(cls, members: Sequence[str], partitions: int, left: Budget) -> State:
        """The first state: an empty table, and processes that have not started."""
        table = Snapshot(Group("namespace", "hub", "$default"))
        covered = {str(partition): 0 for partition in range(partitions)}
        return cls(
            10 * LEASE, table, tuple(map(Process, members)), {id: Disk() for id in members}, left, covered=covered
        )

    @property
    def clocks(self) -> Clocks:
        return Clocks(float(self.now), 1000 * self.now)
