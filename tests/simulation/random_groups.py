"""Random groups of real members in simulated time, with faults and orders of every kind. The invariants are checked at
every step.

`python -m tests.simulation.random_groups --groups 200 --seed 0` runs 200 groups for an hour each. For each violation,
it prints the seed and the partition's story; at the end, it prints a summary.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, pstdev
from typing import NamedTuple

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import (
    Checkpoint,
    Claim,
    Drain,
    HandOver,
    Outcome,
    Release,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.commands import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks, ResumePoint
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Author, Lease, Member, MemberState
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import REACTIVE, STRATEGIES
from spark_ehbalance.group.strategies.weights import demands
from spark_ehbalance.lease_table.contract import ATTEMPTS, longest_wait
from spark_ehbalance.simulation.engine import Engine
from spark_ehbalance.simulation.hub import SimulatedHub
from spark_ehbalance.simulation.measures import Ledger
from spark_ehbalance.simulation.members import START_MS, Node, World
from spark_ehbalance.simulation.scenario import HubSettings, QuerySettings, StoreSettings
from spark_ehbalance.simulation.store import SimulatedStore
from storm.witness import Loss, kind_of_change

#: Seconds for which a group is simulated, and seconds after which there are no more faults.
LENGTH, FAULTS_END = 3600.0, 2700.0

#: Additional seconds in which an uneven group must become even: a cool-down of `transfer`, and some cycles.
SETTLING_SECONDS = 300.0

#: Monotonic clocks run faster or slower by up to the fraction `DRIFT`. Wall clocks are wrong by up to `SKEW_MS`, so two
#: of them differ by no more than `CLOCK_SKEW_ALLOWANCE`.
DRIFT, SKEW_MS = 1e-4, 150_000

#: Seconds after which a process gives up a request that the store does not answer.
TIMEOUT = 5.0

#: What can happen to a commit during a period of bad commits. `unknown`: it is applied, but the answer is lost. `late`:
#: it is applied after the process has given it up, if the table has not changed.
FATES = ("", "delayed", "unknown", "late", "unsent", "raced")

OPERATOR = Author("operator", "")


class Violation(AssertionError):
    """An invariant is violated for `partition`, or for the whole group."""

    def __init__(self, what: str, partition: str = "") -> None:
        super().__init__(f"partition {partition}: {what}" if partition else what)
        self.partition = partition


class EarliestHub(SimulatedHub):
    """A hub in which reading begins at the first event."""

    def starting_positions(self, partitions: Sequence[str], latest: float) -> Mapping[str, Position]:
        return dict.fromkeys(partitions, Position.before(0))


class Reading(NamedTuple):
    """The store's answer, which arrived at the time `arrived`. `snapshot` is None if the store was unreachable. `still`
    is true if nobody had written for half a lease duration."""

    snapshot: Snapshot | None
    arrived: float
    still: bool


@dataclass(slots=True)
class Disk:
    """A query's Spark checkpoint, which survives its processes."""

    finished: int = 0
    begun: int = 0
    planner: str = ""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    resume: Mapping[str, ResumePoint] = field(default_factory=dict)
    processes: int = 0


class Process(Node):
    """A member's process. Its clock drifts, and its requests reach the store even while it is suspended or dead."""

    def __init__(self, group: RandomGroup, name: str, settings: Settings) -> None:
        self.group, self.disk = group, group.disks[name]
        self.disk.processes += 1
        rng = random.Random(f"{group.seed} {name} {self.disk.processes}")
        super().__init__(name, self.disk.processes, settings, group.world, rng)
        self.author, disk = Author(name, f"{name}.{self.number}"), self.disk
        query = QueryState(disk.progress, batch=disk.finished, begun=disk.begun, planner=disk.planner)
        self._member = MemberEngine(self.author, settings, rng, query=query, resume=disk.resume, latest_ms=START_MS)
        self.settings = settings
        self.drift, self.skew_ms = rng.uniform(-DRIFT, DRIFT), rng.randint(-SKEW_MS, SKEW_MS)
        self.unreachable_until = self.bad_commits_until = 0.0
        self.pause_at_commit = 0.0
        self.leaving = False
        #: The time of the last read, and the last time at which a read ended a gap of more than half a lease duration.
        self.read_at, self.blind_until = float("inf"), float("-inf")
        #: The newest version that was read, and the last times at which the store did not answer a read, and at which
        #: the table had not changed for half a lease duration.
        self.known, self.unreachable_at, self.unwritable_at = -1, float("-inf"), float("-inf")

    @property
    def monotonic(self) -> float:
        return self._now * (1 + self.drift)

    @property
    def stopping(self) -> bool:
        """Whether Spark has stopped the query, and no longer plans batches."""
        return self._stopping is not None

    def may_plan(self) -> Mapping[str, int]:
        """Partition → epoch, for all partitions that Spark could plan now."""
        return {p: holding.epoch for p, holding in self._member.readable(self.monotonic).items()}

    def reads(self, partition: str, epoch: int) -> bool:
        """Whether the batch in flight reads `partition` with this `epoch`."""
        return self._batch is not None and self._batch.ranges.get(partition, (0,))[0] == epoch

    def drain_itself(self) -> None:
        self.leaving = True
        self._member.handle(protocol.LeaveRequested(), self._clocks())
        if not self._busy:
            self._wait()

    # --- requests to the store -----------------------------------------------------------------------------------

    def _clocks(self) -> Clocks:
        return Clocks(self.monotonic, START_MS + round(self._now * 1000) + self.skew_ms)

    def _wait(self) -> None:
        self._busy = False
        self._read_at(max(self._now, self._member.due() / (1 + self.drift)), self._balance)

    def _can_reach_store(self) -> bool:
        return not self._world.store.unreachable and self._now >= self.unreachable_until

    def _answer(self, after: float, step: int, action: Callable[[], None]) -> None:
        """Deliver an answer, unless the process has given up the request of this `step`."""
        self._world.engine.at(self._now + after, partial(self._do, lambda: step == self._step, action))

    def _read_at(self, time: float, then: Callable[[Reading], None]) -> None:  # type: ignore[override]
        self._at(time, partial(self._request, then))

    def _request(self, then: Callable[[Reading], None]) -> None:
        self._busy, self._step, store = True, self._step + 1, self._world.store
        self._member.handle(protocol.Tick(), self._clocks())
        half = store.read_time(1 + store.remaining_requests(self._known_version)) * self.slowness / 2
        self._world.engine.at(self._now + half, partial(self._serve, then, self._step, half))

    def _serve(self, then: Callable[[Reading], None], step: int, half: float) -> None:
        snapshot = self._world.store.snapshot if self._can_reach_store() else None
        still = self._now - self.group.changed_at > self.group.lease_duration / 2
        self._answer(half, step, partial(then, Reading(snapshot, self._now + half, still)))

    def _balance(self, reading: Reading) -> None:  # type: ignore[override]
        if reading.snapshot is None:
            self.unreachable_at = reading.arrived
            self._report_failure(writing=False)
            return
        joined, self.unreachable_at = self._member._member.joined, float("-inf")
        self.known = max(self.known, reading.snapshot.version)
        if self._now - self.read_at > self._member._member.duration.shortest / 2:
            self.blind_until = self._now
        self.read_at = self._now
        if reading.still:
            self.unwritable_at = reading.arrived
        self._handle(protocol.GroupRead(reading.snapshot, self._world.hub.ids))
        row = reading.snapshot.members.get(self.name)
        if self.running and joined and row is not None and row.incarnation != self.author.incarnation:
            raise Violation(f"{self.author.incarnation} continues after it has read that {row.incarnation} has joined")

    def _attempt(self, changes: Sequence[Transition], base: Snapshot, attempt: int, since: float) -> None:
        self._busy, self._step, store, rng = True, self._step + 1, self._world.store, self.group.rng
        fate = rng.choice(FATES) if self._now < self.bad_commits_until else ""
        if fate:
            self.group.count(f"commit {fate}", self)
        half = (store.attempt_time() * self.slowness + (rng.uniform(1, 25) if fate == "delayed" else 0)) / 2
        arrives = rng.uniform(1, 6) * TIMEOUT if fate == "late" else half
        if fate in ("late", "unsent"):
            self._answer(TIMEOUT, self._step, partial(self._report_failure, writing=True))
        if fate == "raced":
            self._answer(half, self._step, partial(self._handle, protocol.RacesLost()))
        elif fate != "unsent":
            arrive = partial(self._arrive, changes, base, attempt, since, self._now, self._step, half, fate)
            self._world.engine.at(self._now + arrives, arrive)
        if self.pause_at_commit:
            seconds, self.pause_at_commit = self.pause_at_commit, 0.0
            self.group.pause(self, seconds)

    def _arrive(
        self,
        changes: Sequence[Transition],
        base: Snapshot,
        attempt: int,
        since: float,
        began: float,
        step: int,
        half: float,
        fate: str,
    ) -> None:
        """Handle a commit that has reached the store: it succeeds if the table is still at `base`."""
        store, action = self._world.store, partial(self._report_failure, writing=True)
        if self._can_reach_store() and self._now >= max(self.read_only_until, self.group.read_only_until):
            if store.snapshot.version != base.version:
                action = partial(self._conflict, changes, attempt, since, began)
            else:
                outcome = apply(base, changes)
                if outcome.after is not base:
                    outcome = replace(outcome, after=store.write(outcome.after), seconds=self._now - began)
                    self.group.check_commit(outcome)
                action = partial(self._committed, outcome, since)
        if fate == "unknown":
            half, action = TIMEOUT, partial(self._report_failure, writing=True)
        if fate != "late":
            self._answer(half, step, action)

    def _committed(self, outcome: Outcome, since: float) -> None:
        self.known = max(self.known, outcome.after.version)
        self._handle(protocol.Committed(outcome, self._now - since))

    def _conflict(self, changes: Sequence[Transition], attempt: int, since: float, began: float) -> None:
        self._world.store.conflicts += 1
        if attempt == ATTEMPTS:
            self._handle(protocol.RacesLost())
        else:
            wait = self._rng.uniform(0, longest_wait(attempt, self._now - began))
            self._read_at(self._now + wait, partial(self._retry, changes, attempt + 1, since))

    def _retry(  # type: ignore[override]
        self, changes: Sequence[Transition], attempt: int, since: float, reading: Reading
    ) -> None:
        if reading.snapshot is None:
            self._report_failure(writing=True)
        else:
            self._attempt(changes, reading.snapshot, attempt, since)

    def _handle(self, input: protocol.Input) -> None:
        super()._handle(input)
        if self.running:
            self.group.check(self)
        elif self._stopping is None:
            self.group.count("fenced", self)
            row = self._world.store.snapshot.members.get(self.name)
            if row is not None and row.incarnation == self.author.incarnation:
                raise Violation(f"{self.author.incarnation} was fenced although no later process exists")

    # --- the query -----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self.group.check(self)
        seconds = self.group.batch_seconds * self._rng.choice((0.2, 0.5, 1, 1, 2, 5))
        seconds = min(seconds, (self.settings.max_stall or 2 * seconds) / 2)  # only a suspended query hangs
        self._world = replace(self._world, query=replace(self._world.query, batch=seconds))
        super()._plan()
        if self._batch is not None:
            disk, owned = self.disk, self._member.owned
            disk.begun, disk.planner = disk.begun + 1, self.author.incarnation
            self._batch_at_sink = disk.begun
            self._member.record_batch(disk.begun, disk.planner)
            disk.resume = {
                p: ResumePoint(first, owned[p].since_ms, epoch) for p, (epoch, first, _) in self._batch.ranges.items()
            }
            for p, (epoch, first, end) in self._batch.ranges.items():
                self.group.opened[p].setdefault(epoch, self._now)
                self.group.note(p, f"{self.author.incarnation} plans {first} to {end} with epoch {epoch}")

    def _end(self) -> None:
        """Finish the batch in the sink. Events after a new owner's receiver disconnected this one were not read. The
        query nevertheless reports the planned ends, and the table must reject them."""
        batch = self._batch
        assert batch is not None
        self._batch = None
        self._meter = self._meter.batch_ended(self._now)
        for p, (epoch, first, end) in batch.ranges.items():
            cut = min((at for later, at in self.group.opened[p].items() if later > epoch), default=None)
            read_to = end if cut is None else first + int(batch.fraction_read(cut) * (end - first))
            self.group.finished(self, p, epoch, first, read_to)
        progress = {p: Progress(epoch, Position(end - 1)) for p, (epoch, _, end) in batch.ranges.items()}
        self._positions |= {p: (epoch, end) for p, (epoch, _, end) in batch.ranges.items()}
        self.disk.finished, self.disk.progress, self.disk.resume = self._batch_at_sink, progress, {}
        self._member.finish_batch(progress, self._batch_at_sink)
        if not self._busy:
            self._wait()
        self._plan()


class RandomGroup:
    """A group, and an hour of faults. The seed determines all of it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"{seed} group")
        self.counts: Counter[str] = Counter()
        partitions, members = rng.randint(1, rng.choice((10, 20, 40))), rng.randint(2, rng.choice((3, 6, 12)))
        self.balance_interval = rng.choice((3.0, 5.0, 10.0, 10.0, 15.0))
        self.lease_duration = self.balance_interval * rng.choice((1.5, 2.0, 3.0, 3.0, 4.0))
        self.read_interval = rng.choice((1.0, 3.0, 3.0))
        self.handover_timeout = rng.choice((self.lease_duration, 5.0, 60.0))
        self.checkpoint_interval = rng.choice((0.0, 0.0, 10.0))
        self.max_stall = rng.choice((None, None, 45.0))
        self.batch_seconds = rng.choice((2.0, 5.0, 5.0, 15.0))
        self.strategies = rng.choices(sorted(STRATEGIES), k=rng.choice((1, 1, 1, 2, 3)))
        self.limited = rng.random() < 0.25
        self.pace = rng.choice((10.0, 20.0, 40.0))  # seconds between two faults
        self.engine = Engine()
        self.hub = EarliestHub.create(HubSettings(100.0, rng.choice((0.0, 0.0, 1.0))), partitions, rng)
        self.store = SimulatedStore(
            StoreSettings(latency=rng.choice((0.001, 0.01, 0.05, 0.1))),
            Snapshot(Group("simulated", "random", "$default")),
            random.Random(f"{seed} store"),
        )
        query = QuerySettings(trigger=rng.choice((1.0, 5.0)))
        self.world = World(self.engine, self.store, self.hub, query, lambda member, outcome: None)
        self.disks: defaultdict[str, Disk] = defaultdict(Disk)
        self.processes: list[Process] = []
        self.changed_at = self.read_only_until = 0.0
        self.renewals: dict[tuple[str, int], tuple[float, float]] = {}  # (partition, epoch) → time, duration
        self.losses: dict[tuple[str, int], Loss] = {}  # by partition and lost epoch
        self.opened: defaultdict[str, dict[int, float]] = defaultdict(
            dict
        )  # partition → epoch → the time at which its receiver opened
        self.sought: dict[str, int] = {}  # partition → the epoch after its last seek
        self.takers: dict[str, str] = {}  # the last process to claim a partition; removed after a handover
        self.covered: dict[str, int] = {}  # the position up to which all events since the last seek were read
        self.stories: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=14))
        for _ in range(members):
            self._start(f"member-{len(self.disks)}", rng.choice((0.0, 0.0, rng.uniform(0, 60))))

    def run(self) -> None:
        """Simulate the hour. Raises `Violation`."""
        at = 30.0
        while (at := at + self.rng.expovariate(1 / self.pace)) < FAULTS_END:
            self.engine.at(at, partial(self._run_happening, self.rng.choice(_HAPPENINGS)))
        self.engine.at(FAULTS_END, self._end_faults)
        try:
            self.engine.run(LENGTH)
            self._check_end()
            self._check_even()
        except EhBalanceError as error:
            raise Violation(f"a member ends with {error}") from error

    def note(self, partition: str, what: str) -> None:
        self.stories[partition].append(f"{self.engine.now:9.3f} {what}")

    def count(self, what: str, process: Process | None = None) -> None:
        self.counts[what] += 1
        self.note("", f"{what} {process.author.incarnation if process else ''}")

    def longest_duration(self) -> float:
        return max(map(self._duration, [*self.store.snapshot.members, ""]))

    def _duration(self, member: str) -> float:
        """The lease duration by which others judge `member`, in seconds."""
        snapshot = self.store.snapshot
        row = snapshot.members.get(member)
        own_ms = (row and row.lease_duration_ms) or snapshot.lease_duration_ms
        return self.lease_duration if own_ms is None else own_ms / 1000

    # --- invariants ----------------------------------------------------------------------------------------------

    def check(self, process: Process) -> None:
        """Check that `process` owns the partitions that it may plan, or cannot know yet that it has lost them."""
        if not process.is_awake or process.stopping:
            return
        snapshot, now = self.store.snapshot, self.engine.now
        for p, epoch in process.may_plan().items():
            renewed, duration = self.renewals[p, epoch]
            if now - renewed > duration * (1 + 2 * DRIFT) and not self._in_safe_mode(process):
                what = f"{process.author.incarnation} plans {now - renewed:.3f} s after its last renewal"
                raise Violation(f"{what}, with a lease duration of {duration:g} s", p)
            if (loss := self.losses.get((p, epoch))) is None:
                continue
            owner = snapshot.leases[p].owner
            what = f"{owner} owns it by {loss.kind}, but {process.author.incarnation} may plan it with epoch {epoch}"
            if process.known >= loss.version:
                raise Violation(f"{what}, though it has read that", p)
            forced = owner in (None, process.name) or loss.kind not in ("expiry", "free", "handover")
            if not forced and not self._in_safe_mode(process):
                raise Violation(what, p)

    def _in_safe_mode(self, process: Process) -> bool:
        """Whether the table is unavailable to `process`, or was recently unwritable for everybody."""
        away, unwritable = self.engine.now - process.unreachable_at, self.engine.now - process.unwritable_at
        longest = self.longest_duration() * (1 + 2 * DRIFT)
        return away < 4 * process.settings.balance_interval * (1 + 2 * DRIFT) or unwritable < longest / 3

    def check_commit(self, outcome: Outcome) -> None:
        """Check a commit that has been written to the table."""
        before, after, now = outcome.before, outcome.after, self.engine.now
        self.changed_at = now
        by_partition: dict[str, list[Transition]] = defaultdict(list)
        for transition in outcome.accepted:
            by_partition[getattr(transition, "partition", "")].append(transition)
            if isinstance(transition, (Claim, Steal)):
                self.takers[transition.partition] = transition.by.incarnation
            elif isinstance(transition, HandOver):
                self.takers.pop(transition.partition, None)
        for p, lease in after.leases.items():
            if (old := before.leases.get(p, Lease(p))) is not lease:
                self._check_lease_change(old, lease, by_partition[p], after)
        for transition in outcome.accepted:
            row = after.members.get(transition.by.id) or before.members.get(transition.by.id)
            if isinstance(transition, Checkpoint) and (row is None or row.incarnation != transition.by.incarnation):
                raise Violation(f"the checkpoint of {transition.by.incarnation} was accepted", transition.partition)
            if isinstance(transition, (HandOver, Release)) and self.max_stall is None:
                self._check_release(transition)
        for id, row in after.members.items():
            # Partitions that an earlier process of the member claimed are released by the member's next commit.
            own = [p for p in after.ownership.owned.get(id, ()) if self.takers.get(p) in (None, row.incarnation)]
            if row.max_owned is not None and len(own) > row.max_owned:
                raise Violation(f"{id} owns more than maxPartitionsOwned={row.max_owned}")
        for process in self.processes:
            if process.running and after.ownership is not before.ownership:
                self.check(process)

    def _check_release(self, transition: HandOver | Release) -> None:
        """Check that a running query does not release a partition of its batch in flight."""
        p = transition.partition
        for process in self.processes:
            if process.running and process.author == transition.by and process.reads(p, transition.epoch):
                raise Violation(f"{process.author.incarnation} releases it during its batch", p)

    def _check_lease_change(self, old: Lease, lease: Lease, transitions: Iterable[Transition], after: Snapshot) -> None:
        p, was, checkpoint = lease.partition, old.checkpoint, lease.checkpoint
        for transition in transitions:
            if isinstance(transition, Seek):
                self.sought[p], self.covered[p] = lease.epoch, transition.position.next
                was = None
            if isinstance(transition, Checkpoint) and transition.epoch != old.epoch:
                raise Violation(f"a checkpoint of epoch {transition.epoch} was accepted in epoch {old.epoch}", p)
        if lease.epoch < old.epoch or (lease.epoch == old.epoch and lease.owner not in (None, old.owner)):
            raise Violation(f"{old.owner} has epoch {old.epoch}, and then {lease.owner} {lease.epoch}", p)
        if was and (checkpoint is None or checkpoint.next < was.next):
            raise Violation(f"the checkpoint falls from {was.next} to {checkpoint and checkpoint.next}", p)
        if checkpoint is not None and checkpoint.next > self.covered.setdefault(p, 0):
            raise Violation(f"events {self.covered[p]} to {checkpoint.next - 1} are checkpointed and were not read", p)
        if lease.owner is not None and lease.counter != old.counter:
            self.renewals[p, lease.epoch] = self.engine.now, self._duration(lease.owner)
        if lease.epoch > old.epoch:
            kind = kind_of_change(old, lease, transitions)
            if kind == "expiry" and self._was_blind(after.members[lease.owner or ""], self._duration(old.owner or "")):
                raise Violation(f"{lease.owner} declares {old.owner} dead without evidence", p)
            for epoch in range(old.epoch, lease.epoch):
                self.losses[p, epoch] = Loss(kind, after.version)
            self.note(p, f"{old.owner} → {lease.owner} by {kind}, epoch {lease.epoch}, checkpoint {checkpoint}")
        elif lease.owner != old.owner or lease.handover != old.handover:
            self.note(p, f"owner {lease.owner}, epoch {lease.epoch}, handover {lease.handover}")

    def _was_blind(self, taker: Member, duration: float) -> bool:
        """Whether `taker` failed to read the table at some time within the last `duration` seconds."""
        blind = [process.blind_until for process in self.processes if process.author.incarnation == taker.incarnation]
        return self.engine.now - max(blind) < duration * (1 - 2 * DRIFT)

    def finished(self, process: Process, partition: str, epoch: int, first: int, end: int) -> None:
        """Record that the sink has finished the events `first` to `end - 1`, which were read with this `epoch`."""
        self.note(partition, f"{process.author.incarnation} has finished {first} to {end} with epoch {epoch}")
        if end > first and epoch >= self.sought.get(partition, 0):
            covered = self.covered.setdefault(partition, 0)
            if first > covered:
                raise Violation(f"events {covered} to {first - 1} were skipped", partition)
            self.covered[partition] = max(covered, end)

    def _check_end(self) -> None:
        snapshot = self.store.snapshot
        rows = [snapshot.members.get(process.name) for process in self._awake()]
        for row, process in zip(rows, self._awake(), strict=True):
            if row is None or row.incarnation != process.author.incarnation:
                raise Violation(f"{process.author.incarnation} runs but is not a member")
        active, running = {row.id for row in self._active()}, {process.name for process in self._awake()}
        for p in self.hub.ids:
            lease = snapshot.leases.get(p, Lease(p))
            if lease.owner in running and lease.owner not in active:
                raise Violation(f"{lease.owner} owns it although it is drained", p)

    def _active(self) -> list[Member]:
        """The rows of the members that run and are not drained."""
        rows = [self.store.snapshot.members.get(process.name) for process in self._awake()]
        return [row for row in rows if row is not None and row.state is MemberState.ACTIVE]

    def _check_even(self) -> None:
        """Check that the partitions are evenly distributed. If a member has just lost a lease because of contention,
        this can take until a steal, or the end of a cool-down."""
        uneven = self._describe_imbalance()
        while uneven and self.engine.now < LENGTH + SETTLING_SECONDS:
            self.engine.run(self.engine.now + 10.0)
            uneven = self._describe_imbalance()
        if uneven:
            raise Violation(uneven)

    def _describe_imbalance(self) -> str:
        """A description of how the partitions are distributed; empty if they are evenly distributed."""
        snapshot, active = self.store.snapshot, self._active()
        limits = {row.id: row.max_owned for row in active}
        ledger = Ledger(snapshot, lambda: self.engine.now, self.hub.rates, self.lease_duration)
        ledger.change(limits, len(self.hub.ids))
        owned = {id: snapshot.ownership.owned.get(id, ()) for id in limits}
        counts, names = [len(theirs) for theirs in owned.values()], {row.strategy for row in active}
        if not ledger.balanced[-1][1] and not (names <= {"cooperative", "transfer"} and self._is_tolerable(owned)):
            unowned = [p for p in self.hub.ids if p not in snapshot.leases or snapshot.leases[p].owner is None]
            return f"uneven at the end: {counts} with {names} and {limits}, unowned {unowned}"
        return ""

    def _is_tolerable(self, owned: Mapping[str, Sequence[str]]) -> bool:
        """Whether the measured loads, which cooperative and transfer try to balance, are within `transfer.target`, and
        no member is idle."""
        known = demands(self.store.snapshot)
        loads = [sum(known.get(p, 0.0) for p in theirs) for theirs in owned.values()]
        return pstdev(loads) <= 0.25 * fmean(loads) and (min(loads) > 0 or max(map(len, owned.values())) < 2)

    # --- faults and orders ---------------------------------------------------------------------------------------

    def _run_happening(self, what: str) -> None:
        getattr(self, f"_{what}")()

    def _running(self) -> list[Process]:
        return [process for process in self.processes if process.running]

    def _awake(self) -> list[Process]:
        return [process for process in self.processes if process.is_awake]

    def _choose_process(self, what: str) -> list[Process]:
        """Choose one of the processes that are awake, if there is one, and count the fault `what`."""
        chosen = [self.rng.choice(awake)] if (awake := self._awake()) else []
        for process in chosen:
            self.count(what, process)
        return chosen

    def _end_time(self, longest: float, shortest: float = 1.0) -> float:
        """Draw the time at which a fault that begins now ends."""
        return min(FAULTS_END, self.engine.now + self.rng.uniform(shortest, self.rng.choice((longest, longest / 6))))

    def _start(self, name: str, after: float = 0.0) -> None:
        rng, strategy = self.rng, self.rng.choice(self.strategies)
        settings = Settings(
            STRATEGIES[strategy],
            self.lease_duration * (rng.choice((1.0, 1.5)) if rng.random() < 0.1 else 1.0),
            self.handover_timeout,
            rng.choice((None, 1, 3, 8, 20)) if self.limited else None,
            strategy_name=strategy,
            lineage=f"lineage {name}",
            read_interval=self.read_interval,
            balance_interval=self.balance_interval,
            checkpoint_interval=self.checkpoint_interval,
            reactive=strategy in REACTIVE,
            max_stall=self.max_stall,
        )
        process = Process(self, name, settings)
        self.processes.append(process)
        process.start(after)

    def pause(self, process: Process, seconds: float) -> None:
        """Suspend `process` unless it is already suspended. It resumes when the faults end, at the latest."""
        until = min(FAULTS_END, self.engine.now + seconds)
        if process.is_awake and until > self.engine.now:
            self.count("pause", process)
            process.pause(until - self.engine.now)
            self.engine.at(process.suspended_until, partial(self.check, process))

    def _apply_order(self, order: Transition) -> None:
        outcome = apply(self.store.snapshot, [order])
        if self.store.unreachable or self.engine.now < self.read_only_until or not outcome.accepted:
            return
        self.count(type(order).__name__.lower())
        if outcome.after is not outcome.before:
            self.check_commit(replace(outcome, after=self.store.write(outcome.after)))

    def _join(self) -> None:
        if len({process.name for process in self._running()}) < 12:
            self.count("join")
            self._start(f"member-{len(self.disks)}")

    def _leave(self) -> None:
        for process in self._choose_process("leave"):
            process.stop(lambda: None)

    def _leave_slowly(self) -> None:
        for process in self._choose_process("drain itself"):
            process.drain_itself()

    def _kill(self) -> None:
        for process in self._choose_process("kill"):
            process.crash()

    def _restart(self) -> None:
        for process in self._choose_process("restart"):
            process.crash() if self.rng.random() < 0.7 else process.stop(lambda: None)
            self.engine.at(self._end_time(60.0, 0.0), partial(self._start_replacement, process))

    def _start_replacement(self, process: Process) -> None:
        process.crash()  # in case it has not ended yet
        self._start(process.name)

    def _twin(self) -> None:
        for process in self._choose_process("twin"):
            self._start(process.name)

    def _suspend(self) -> None:
        for process in self._choose_process("suspend"):
            seconds = self._end_time(300.0) - self.engine.now
            if self.rng.random() < 0.5:
                process.pause_at_commit = seconds
            else:
                self.pause(process, seconds)

    def _unreachable(self) -> None:
        for process in self._choose_process("unreachable"):
            process.unreachable_until = self._end_time(180.0)

    def _read_only(self) -> None:
        for process in self._choose_process("read only"):
            process.read_only_until = self._end_time(180.0)

    def _all_read_only(self) -> None:
        self.count("all read only")
        self.read_only_until = self._end_time(180.0)

    def _outage(self) -> None:
        if not self.store.unreachable:
            self.count("outage")
            self.store.unreachable = True
            self.engine.at(self._end_time(180.0), partial(setattr, self.store, "unreachable", False))

    def _bad_commits(self) -> None:
        for process in self._choose_process("bad commits"):
            process.bad_commits_until = self._end_time(120.0)

    def _slow_store(self) -> None:
        self.count("slow store")
        self.store.slowness = self.rng.choice((3.0, 10.0))
        self.engine.at(self._end_time(120.0), partial(setattr, self.store, "slowness", 1.0))

    def _clock(self) -> None:
        for process in self._choose_process("wall clock"):
            process.skew_ms = self.rng.randint(-SKEW_MS, SKEW_MS)

    def _grow(self) -> None:
        if len(self.hub.ids) < 40:
            self.count("partitions added")
            self.hub.add([100.0] * self.rng.randint(1, min(4, 40 - len(self.hub.ids))), self.engine.now)

    def _give_order(self) -> None:
        """Give an operator's order."""
        rng, leases, members = self.rng, self.store.snapshot.leases, self.store.snapshot.members
        if not leases or not members:
            return
        p, to, at_ms = rng.choice([*leases]), rng.choice([*members]), START_MS + round(self.engine.now * 1000)
        timeout_ms, end = round(1000 * self.handover_timeout), self.hub.end(p, self.engine.now)
        position = Position.before(rng.randint(0, end))
        orders: list[Transition] = [
            PinTo(by=OPERATOR, at_ms=at_ms, partition=p, to=to, timeout_ms=timeout_ms),
            Transfer(by=OPERATOR, at_ms=at_ms, partition=p, to=to, timeout_ms=timeout_ms),
            Unpin(by=OPERATOR, at_ms=at_ms, partition=rng.choice([*self.store.snapshot.ownership.pins, p])),
            Drain(by=OPERATOR, at_ms=at_ms, member=to),
            Drain(by=OPERATOR, at_ms=at_ms, member=to, undo=True),
            Seek(by=OPERATOR, at_ms=at_ms, partition=p, position=position, force=rng.random() < 0.8),
        ]
        self._apply_order(rng.choice(orders))

    def _end_faults(self) -> None:
        """End the faults: remove all pins, and ensure that a member is running that is not drained."""
        for p in self.store.snapshot.ownership.pins:
            self._apply_order(Unpin(by=OPERATOR, at_ms=START_MS, partition=p))
        members = self.store.snapshot.members
        drained = {id for id, row in members.items() if row.state is MemberState.LEAVING}
        if not any(not process.leaving and process.name not in drained for process in self._running()):
            self._start(f"member-{len(self.disks)}")


_HAPPENINGS = (
    *("join", "join", "leave", "leave_slowly", "kill", "kill", "restart", "restart", "twin", "suspend", "suspend"),
    *("suspend", "unreachable", "read_only", "all_read_only", "outage", "bad_commits", "bad_commits", "slow_store"),
    *("clock", "grow", "give_order", "give_order", "give_order", "give_order"),
)


def play(seed: int) -> tuple[Counter[str], str]:
    """Run the group of this seed. Returns the numbers of faults, and the violation, if there is one, with the
    partition's story."""
    group = RandomGroup(seed)
    try:
        group.run()
    except Violation as violation:
        lines = sorted([*group.stories[violation.partition], *(group.stories[""] if violation.partition else ())])
        kind = "at the end" if group.engine.now >= LENGTH else "before the end"
        group.counts[f"VIOLATION {kind}"] += 1
        story = "\n".join(f"    {line}" for line in lines)
        return group.counts, f"seed {seed} at {group.engine.now:.3f} s: {violation}\n{story}"
    return group.counts, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first group; each further group has the next one"
    )
    arguments = parser.parse_args()
    logging.disable()
    counts, violations, began = Counter[str](), 0, time.monotonic()
    for number in range(arguments.groups):
        counted, story = play(arguments.seed + number)
        counts += counted
        violations += bool(story)
        if story:
            print(story, flush=True)
        print(f"{number + 1} groups, {violations} violations, {time.monotonic() - began:.0f} s", file=sys.stderr)
    listed = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
    print(f"{arguments.groups} groups of {LENGTH / 60:.0f} minutes: {violations} violations; {listed}")
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
