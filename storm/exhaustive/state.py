"""The world of a small group as one immutable value."""

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

#: Seconds of a lease: a step, in which time passes, is a third of it, and the clock skew allowance another one.
LEASE = 3 * round(CLOCK_SKEW_ALLOWANCE)
STEP = LEASE // 3


class Violation(Exception):
    """Something that must never happen."""


class Left(NamedTuple):
    """How often what may still happen; None: without end. `delays` are late answers, `faults` requests that fail or
    whose answer is lost, `requests` those of any member for a handover."""

    starts: int | None
    delays: int | None = 0
    faults: int | None = 0
    batches: int | None = 0
    requests: int | None = 0


class Process(NamedTuple):
    """A process of the member `id`; without an `engine` it does not run.

    `phase` is "" if it is idle, "read" or "answer" if its read or commit was served and the answer is under way, and
    "write" if its commit is. `request` is the snapshot, the outcome, or the transitions. `batch` is in flight:
    partition → epoch, first event, and whether a reader with a higher epoch has cut it off.
    """

    id: str
    engine: MemberEngine | None = None
    phase: str = ""
    request: Any = None
    batch: Mapping[str, tuple[int, int, bool]] | None = None


class Disk(NamedTuple):
    """A query's Spark checkpoint: how often it has started, the batch in flight, and the progress of the last one."""

    starts: int = 0
    resume: Mapping[str, ResumePoint] = {}
    progress: Mapping[str, Progress] = {}


class State(NamedTuple):
    """`now` is in seconds, `disks` are by member.

    `stray` is a commit whose process was killed or has given it up: it arrives as long as the table is as it was.
    `forced` are partition and epoch of leases that were taken by force. By partition, `opened` is the highest epoch of
    all batches, and `covered` the number of events that a sink has.
    """

    now: int
    table: Snapshot
    processes: tuple[Process, ...]
    disks: Mapping[str, Disk]
    left: Left
    stray: tuple[Transition, ...] = ()
    forced: frozenset[tuple[str, int]] = frozenset()
    opened: Mapping[str, int] = {}
    covered: Mapping[str, int] = {}

    @classmethod
    def first(cls, members: Sequence[str], partitions: int, left: Left) -> State:
        """An empty table, and processes that have not started."""
        table = Snapshot(Group("namespace", "hub", "$default"))
        covered = {str(partition): 0 for partition in range(partitions)}
        return cls(
            10 * LEASE, table, tuple(map(Process, members)), {id: Disk() for id in members}, left, covered=covered
        )

    @property
    def clocks(self) -> Clocks:
        return Clocks(float(self.now), 1000 * self.now)
