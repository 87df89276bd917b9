"""One streaming query in a storm: Spark's logs and calls, its tasks, its sink, and the process with the engines.

Spark 4.2's order: `latestOffset` (plan), the offset log (log), `partitions` (ask), the tasks (read), the sink (write),
the commit log (commit). Between any two of these the process may be killed; the next one continues with the logs.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.changes import Stall
from spark_ehbalance.group.member import protocol as member_protocol
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Holding
from spark_ehbalance.group.mismatch import Mismatch
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import REACTIVE, NamedStrategy
from spark_ehbalance.query import protocol
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.offsets import FirstStart, HubReference, LoggedBatch, StreamOffset, group_name
from spark_ehbalance.query.past import mismatch
from spark_ehbalance.query.progress_policy import SharedProgress
from spark_ehbalance.query.replay import Logged, recover
from storm.world import Event, Violation, World

_TABLE = "/leases"
_HUB = HubReference("hub", "namespace", 1)

#: Seconds within which a process joins, whatever the others do.
_JOINS_WITHIN = 100.0

#: Seconds for which a planner waits for the group to settle, and for partitions that it cannot plan yet; and between
#: two tries.
_PATIENCE, _RETRY = 60.0, 0.5


class Step(enum.Enum):
    """What Spark does next."""

    PLAN = "latestOffset"
    LOG = "write the offset log"
    ASK = "partitions"
    READ = "run the tasks"
    WRITE = "write the sink"
    COMMIT = "write the commit log"


@dataclass(frozen=True, slots=True)
class Profile:
    """What all processes of a query have in common. The sink `skips_known` batch numbers, as Delta's own does. With
    `available_now` each process reads what there is and ends."""

    owner: str
    strategy: str
    skips_known: bool
    checkpoint_interval: float = 0.0
    max_owned: int | None = None
    max_stall: float | None = None
    available_now: bool = False


class Query:
    """A query on Spark, with at most one process. `trouble` is what is wrong with the process's way to the table:
    "unreadable", "unwritable", or "unknown" (it can write, but does not hear that it has)."""

    def __init__(self, world: World, profile: Profile) -> None:
        self._world, self.profile = world, profile
        self.offsets: list[StreamOffset] = []
        self.commits = 0
        self.running = False
        self.trouble: str | None = None
        #: How likely a task finds that its partition delivers nothing.
        self.stalling = 0.0
        #: Of its checkpoint.
        self.lineage = f"lineage of {profile.owner}"
        self._starts = 0
        self._has_written: set[int] = set()

    @property
    def log(self) -> list[LoggedBatch]:
        """Its batches in Spark's checkpoint."""
        return [LoggedBatch(end, number < self.commits) for number, end in enumerate(self.offsets)]

    def holdings(self) -> Mapping[str, Holding]:
        """What its process may plan a batch with now, by what it has seen in the table. Without the table it plans on,
        and the hub's epochs keep it apart from a next owner."""
        return self.member.holdings(self._world.now) if self.running and not self.member.failures else {}

    # --- the process -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process with what Spark has logged. Raises `Violation` if it must not start, or does not join the
        group in time."""
        if wrong := self.mismatch():
            raise Violation(f"{self.profile.owner} must not start: {wrong.error()}")
        world, self._starts, self.running, self.trouble = self._world, self._starts + 1, True, None
        logged, run = self._logged(), f"{self.profile.owner}-{self._starts}"
        query = replace(self._initial(), run=run, hub=_HUB, first_start=FirstStart(1, len(world.ends)))
        progress, earlier = recover(logged, world.table, self.lineage)
        self.member = MemberEngine(
            Author(self.profile.owner, run),
            self._settings(),
            random.Random(world.rng.random()),
            query=logged.query_state(progress),
            resume=logged.resumed(),
            latest_ms=1,
        )
        self.engine = QueryEngine(self.member, SharedProgress(query, _TABLE), earlier=earlier)
        self._start, self._end = logged.finished, logged.unfinished
        self._step = Step.PLAN if logged.unfinished.is_initial else Step.ASK
        world.note(f"{run} starts; batch {logged.finished.batch} is finished, {logged.unfinished.batch} is not")
        give_up = world.now + _JOINS_WITHIN
        while not (self.member.cycles or self.member.owned):
            if world.now > give_up:
                raise Violation(f"{run} has not joined within {_JOINS_WITHIN:g} s")
            world.pass_time(0.05)

    def mismatch(self) -> Mismatch | None:
        """Why a process must not start, if that is so."""
        found = self._world.table
        return mismatch(self._logged().last, found if found.leases else None, _HUB, _TABLE)

    def _initial(self) -> StreamOffset:
        return StreamOffset(self.profile.owner, group=group_name(_TABLE), lineage=self.lineage)

    def _logged(self) -> Logged:
        finished = self.offsets[self.commits - 1] if self.commits else self._initial()
        unfinished = (
            self.offsets[self.commits] if len(self.offsets) > self.commits else StreamOffset(self.profile.owner)
        )
        return Logged(StreamOffset.from_json(finished.to_json()), StreamOffset.from_json(unfinished.to_json()))

    def _settings(self) -> Settings:
        name = self.profile.strategy
        return Settings(
            NamedStrategy(name),
            30.0,
            strategy_name=name,
            lineage=self.lineage,
            balance_interval=5.0,
            reactive=name in REACTIVE,
            checkpoint_interval=self.profile.checkpoint_interval,
            handover_timeout=10.0,
            max_owned=self.profile.max_owned,
            max_stall=self.profile.max_stall,
        )

    def turn(self) -> bool:
        """One turn of the lease keeper. Returns whether it was the last one."""
        answer: member_protocol.Input | None = member_protocol.Tick()
        outputs: Sequence[member_protocol.Output] = ()
        while answer is not None:
            outputs = self.member.handle(answer, self._world.clocks)
            answer = None
            for output in outputs:
                answer = self._answer(output)
        return member_protocol.Left() in outputs

    def _answer(self, output: member_protocol.Output) -> member_protocol.Input | None:
        world, trouble = self._world, self.trouble
        match output:
            case member_protocol.ReadGroup():
                if trouble == "unreadable":
                    return member_protocol.StoreFailed(writing=False)
                return member_protocol.GroupRead(world.table, tuple(world.ends), 1)
            case member_protocol.AskHub(partitions, _):
                return member_protocol.HubAnswered(dict.fromkeys(partitions, Position.before(0)))
            case member_protocol.Write(_, changes):
                if trouble in ("unreadable", "unwritable"):
                    return member_protocol.StoreFailed(writing=True)
                outcome = world.commit(changes)
                if trouble == "unknown":
                    return member_protocol.StoreFailed(writing=True)
                return member_protocol.Committed(outcome, 0.01)
            case member_protocol.Fail(error):
                raise Violation(f"{self.profile.owner} fails: {error}")
        return None

    def kill(self) -> None:
        self._world.note(f"{self.member.author.incarnation} is killed; next it would {self._step.value}")
        self.running = False

    def finish(self) -> None:
        """End the batch in flight, as a query does that is stopped in order."""
        while self._step is not Step.PLAN and self.step():
            pass
        if self._step is Step.PLAN:
            self.engine.handle(protocol.BatchFinished(self._start), self._world.clocks)

    def stop(self) -> None:
        """Stop the process in order, wherever Spark is."""
        self._world.note(f"{self.member.author.incarnation} is stopped; next it would {self._step.value}")
        self.member.handle(member_protocol.StopRequested(), self._world.clocks)
        for _ in range(20):
            self._world.now += 0.1
            if self.turn():
                break
        self.running = False

    # --- Spark -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what is next. Returns False if there is nothing to read."""
        match self._step:
            case Step.PLAN:
                return self._plan()
            case Step.LOG:
                self.offsets.append(self._end)
                ranges = {p: (span.start, span.end, span.epoch) for p, span in self._end.ranges.items()}
                self._world.note(f"{self.profile.owner} logs batch {self._end.batch}: {ranges}")
                self._step = Step.ASK
            case Step.ASK:
                if not self.engine.knows_owners(self._end, self._world.now):
                    return False
                (read,) = self.engine.handle(protocol.RangesRequested(self._end), self._world.clocks)
                assert isinstance(read, protocol.Read)
                self._ranges, self._step = read.ranges, Step.READ
            case Step.READ:
                self._rows = [event for wanted in self._ranges for event in self._read(wanted)]
                self._step = Step.WRITE
            case Step.WRITE:
                self._write()
                self._step = Step.COMMIT
            case Step.COMMIT:
                self.commits += 1
                self._start, self._step = self._end, Step.PLAN
        return True

    def _plan(self) -> bool:
        self.engine.handle(protocol.BatchFinished(self._start), self._world.clocks)
        if self.profile.available_now and self.engine.fixed_ends is None:
            self._settle()
        planned, give_up = self._planned(), self._world.now + _PATIENCE
        while planned.end is self._start and planned.unread and self._world.now < give_up:
            self._world.pass_time(_RETRY)
            planned = self._planned()
        end = planned.end
        if end is self._start:
            end = self.engine.policy.empty_end(end, self.member.table)
        if end is self._start:
            if self.profile.available_now:
                self._check_read(gave_up=bool(planned.unread))
                self.stop()
            return False
        self._end, self._step = StreamOffset.from_json(end.to_json()), Step.LOG
        return True

    def _settle(self) -> None:
        """Wait until there is nothing more to take."""
        before, give_up = self.member.settled_cycles, self._world.now + _PATIENCE
        self.member.handle(member_protocol.SettlingBegan(), self._world.clocks)
        while self.member.settled_cycles == before and self._world.now < give_up:
            self._world.pass_time(_RETRY)
        self.member.handle(member_protocol.SettlingEnded(), self._world.clocks)
        self._to_read = dict(self._world.ends)
        self.engine.handle(protocol.EndsFixed(self._world.hub), self._world.clocks)

    def _check_read(self, *, gave_up: bool) -> None:
        """Raise `Violation` if the run ends before all that it owns is read that there was when it began. Without
        others it is to own everything."""
        world, me = self._world, self.profile.owner
        others = any(member.running for member in world.members if member is not self)
        if gave_up or self.trouble or self.member.failures or self.member.query.leaving:
            return
        for partition, lease in world.table.leases.items():
            known = self.member.leases[partition].owner
            free = lease.owner is known is None and not others and self.profile.max_owned is None
            owned = free or lease.owner == known == me
            unread = [n for n in range(self._to_read[partition]) if (partition, n) not in world.written]
            if owned and unread and not lease.stalled and not lease.handover:
                raise Violation(f"the run of {me} ends, and event {unread[0]} of partition {partition} is not read")

    def _planned(self) -> protocol.Planned:
        """The engine's answer to a request for a batch."""
        world = self._world
        if self.profile.available_now and self.engine.without_end:
            self.engine.handle(protocol.EndsFixed(world.hub), world.clocks)
        limit = world.rng.choice([None, None, 1, 2, 7])
        outputs = self.engine.handle(protocol.BatchRequested(self._start, limit, world.hub), world.clocks)
        while True:
            for output in outputs:
                if isinstance(output, protocol.Probe):
                    self._probe(output)
            if isinstance(planned := outputs[-1], protocol.Planned):
                return planned
            outputs = self.engine.handle(protocol.HubReported(world.hub), world.clocks)

    def _probe(self, probe: protocol.Probe) -> None:
        """The hub delivers again."""
        ends = {p: self._world.ends[p] for p, position in probe.positions.items() if position < self._world.ends[p]}
        self.engine.handle(protocol.Probed(probe.positions, ends), self._world.clocks)

    def _read(self, wanted: Range) -> list[Event]:
        """What a task reads: a range whose lease is lost, or whose partition stalls, ends somewhere before its end."""
        world, lease, end = self._world, self._world.table.leases[wanted.partition], wanted.end
        if lease.owner not in (self.profile.owner, None) or not lease.still_owned(wanted.epoch, wanted.since_ms):
            end = world.rng.randint(wanted.start, wanted.end)
        elif lease.owner is not None and len(wanted) > 1 and world.rng.random() < self.stalling:
            end = world.rng.randint(wanted.start, wanted.end - 1)
            task = Author(self.profile.owner, "")
            stall = Stall(
                by=task,
                at_ms=world.clocks.wall_ms,
                partition=wanted.partition,
                epoch=wanted.epoch,
                since_ms=wanted.since_ms,
            )
            if not world.commit([stall]).accepted:
                end = wanted.end
            else:
                world.note(f"{self.profile.owner}: partition {wanted.partition} stalls at {end}")
        return [(wanted.partition, number) for number in range(wanted.start, end)]

    def _write(self) -> None:
        number = self._end.batch
        if self.profile.skips_known and number in self._has_written:
            self._world.note(f"{self.profile.owner}: the sink has batch {number}")
            return
        self._has_written.add(number)
        self._world.written.update(self._rows)
        self._world.note(f"{self.profile.owner} writes batch {number}: {_spans(self._rows)}")


def _spans(rows: Sequence[Event]) -> dict[str, tuple[int, int]]:
    partitions = dict.fromkeys(partition for partition, _ in rows)
    numbers = {p: [number for partition, number in rows if partition == p] for p in partitions}
    return {partition: (found[0], found[-1] + 1) for partition, found in numbers.items()}
