"""The processes of a simulated group: each a keeper, which does as the real one, and a query with its batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from spark_ehbalance.errors import FencedError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Outcome, Transition, apply
from spark_ehbalance.member.load_meter import LoadMeter, MemberMeter
from spark_ehbalance.member.membership import Clocks, Membership, Progress, Settings, in_force, startable
from spark_ehbalance.member.pacing import Pacing
from spark_ehbalance.simulation.engine import Engine
from spark_ehbalance.simulation.hub import Hub
from spark_ehbalance.simulation.scenario import QuerySettings
from spark_ehbalance.simulation.store import SimulatedStore
from spark_ehbalance.stores.base import ATTEMPTS, LONGEST_RETRY_WAIT, longest_wait
from spark_ehbalance.strategies.base import Decision
from spark_ehbalance.values.position import Position

#: Seconds between two measurements of the load. The planner's are one second apart, with the same averages.
_MEASURED_EVERY = 20.0

#: The members' wall clocks begin here, in milliseconds since 1970: a round number in 2023.
BEGINNING_MS = 1_700_000_000_000


class Observer(Protocol):
    """Who takes note of what happens."""

    def wrote(self, outcome: Outcome) -> None:
        """A commit was won."""

    def decided(self, member: str, decision: Decision) -> None:
        """A strategy has decided."""


@dataclass(frozen=True, slots=True)
class World:
    """What all members share."""

    engine: Engine
    store: SimulatedStore
    hub: Hub
    query: QuerySettings
    observer: Observer


@dataclass(slots=True)
class Batch:
    """A batch in flight: partition → (epoch, first, end). From `paused` on it stood still for `pause` seconds."""

    ranges: Mapping[str, tuple[int, int, int]]
    began: float
    ends: float
    paused: float = float("inf")
    pause: float = 0.0

    def part(self, time: float) -> float:
        """How much of it was done at `time`, from 0 to 1."""
        done = min(time, self.paused) + max(0.0, time - self.paused - self.pause) - self.began
        return max(0.0, min(1.0, done / (self.ends - self.began - self.pause)))


@dataclass(slots=True)
class _Commit:
    """What a turn that began at `now` wants to write; `farewell`: its last words."""

    said: list[Transition]
    decision: Decision | None
    now: Clocks
    farewell: bool
    attempt: int = 0


class Node:
    """A member's process. It runs from `start` until `stop`, in good order, or `crash`."""

    def __init__(
        self,
        name: str,
        number: int,
        settings: Settings,
        interval: float,
        reactive: bool,
        world: World,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.number = number  # of this process among those with its name
        self.running = False
        self.skew_ms = 0
        self.slowness = 1.0
        self.until_awake = 0.0  # stands still until then
        self.read_only_until = 0.0  # may not write the store until then
        self._world = world
        self._rng = rng
        self._membership = Membership(Author(name, f"{name}.{number}"), settings, rng)
        self._pacing = Pacing(interval, settings.renewal_interval, reactive=reactive, rng=rng)
        self._interval = interval
        self._turn_number = 0  # of the turn that is to come; what was asked for under another one is moot
        self._committing = False
        self._stopping: Callable[[], None] | None = None
        self._known = -1  # version seen last
        self._looked = 0.0
        self._not_before = 0.0  # after a lost crowd of races, or while the store is away
        self._failures = 0
        self._away = False  # the store, when it was last looked at
        self._batch: Batch | None = None
        self._batch_number = 0
        self._positions: dict[str, tuple[int, int]] = {}  # partition → (epoch, where the next batch begins)
        self._meter, self._member_meter = LoadMeter(), MemberMeter()
        self._measured = 0.0
        self._finished: dict[str, Progress] = {}

    # --- what is done to it --------------------------------------------------------------------------------------

    def start(self, after: float = 0.0) -> None:
        """Begin `after` so many seconds."""
        self.running = True
        self._plan_at(self._now + after)
        self._turn_at(self._now + after)

    def stop(self, then: Callable[[], None]) -> None:
        """End in good order, as `query.stop()` does: a batch in flight is broken off. Calls `then` when it is over."""
        self._stopping = then
        self._batch, self._batch_number = None, self._batch_number + 1
        if not self._committing:
            self._turn_at(self._now)

    def crash(self) -> None:
        """End without a word."""
        self.running = False
        self._turn_number += 1
        self._batch_number += 1

    def pause(self, seconds: float) -> None:
        """Stand still, the batch in flight as well."""
        self.until_awake = self._now + seconds
        if self._batch is not None:
            # What is left of it is done afterwards.
            self._batch.paused, self._batch.pause = self._now, seconds
            self._batch.ends += seconds
            self._batch_number += 1
            self._end_at(self._batch.ends)

    @property
    def awake(self) -> bool:
        """Whether it runs and does not stand still."""
        return self.running and self._now >= self.until_awake

    @property
    def still_for(self) -> float:
        """How many seconds it will still stand still."""
        return max(0.0, self.until_awake - self._now)

    # --- the keeper ----------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._world.engine.now

    def _clocks(self) -> Clocks:
        return Clocks(self._now, BEGINNING_MS + round(self._now * 1000) + self.skew_ms)

    def _at(self, time: float, what: Callable[[], None]) -> None:
        """Have the keeper do `what`, unless it does something else before."""
        self._turn_number += 1
        self._world.engine.at(time, partial(self._do, self._turn_number, what))

    def _do(self, number: int, what: Callable[[], None]) -> None:
        if number != self._turn_number or not self.running:
            return
        if self._now < self.until_awake:
            self._world.engine.at(self.until_awake, partial(self._do, number, what))
        else:
            what()

    def _turn_at(self, time: float) -> None:
        """Look at the store at `time`; what is seen is as of the end of the look."""
        self._committing = False
        self._at(max(time, self._now) + self._world.store.look_time() * self.slowness, self._turn)

    def _wait(self, pause: float = 0.0) -> None:
        """Look again when it is time, at least after `pause`."""
        self._not_before = max(self._not_before, self._now + pause)
        due = self._pacing.due(self._membership.renewal_due(), finished=bool(self._finished))
        self._turn_at(max(0.0 if self._stopping else due, self._not_before))

    def _turn(self) -> None:
        """As `Keeper._turn`: look, decide, commit."""
        store, member, now, decision = self._world.store, self._membership, self._clocks(), None
        self._away, self._looked = store.away, self._now
        if store.away:
            self._failed()
            return
        snapshot = store.look(self._known)
        self._known = snapshot.version
        try:
            member.see(snapshot, now)
        except FencedError:
            self.crash()
            return
        for partition, finished in self._finished.items():
            member.finish(partition, finished)
        self._finished = {}
        member.in_flight = frozenset(self._batch.ranges) if self._batch else frozenset()
        if self._stopping:
            said = member.farewell(now)
        elif self._pacing.balances(now.monotonic, lambda: member.unsettled(snapshot, now)):
            hub = self._world.hub
            said, decision = member.balance(snapshot, now, hub.partition_ids(), hub.earliest_position)
            said, later = startable(said, snapshot, hub.starting_positions)
            decision = replace(decision, rebalance_now=decision.rebalance_now or later)
            self._world.observer.decided(self.name, decision)
        else:
            said = member.say(snapshot, now)
        if not self._stopping:
            said = self._pacing.admit(said, now.monotonic, member.renewal_due())
        commit = _Commit(said, decision, now, farewell=self._stopping is not None)
        if said:
            self._attempt(commit, snapshot)
        else:
            self._turned(commit, Outcome(snapshot, snapshot), None)

    def _attempt(self, commit: _Commit, base: Snapshot) -> None:
        """As `commit` of the store: it lands after a while, if nobody else's has landed before."""
        self._committing = True
        commit.attempt += 1
        self._world.store.attempts += 1
        began = self._now
        self._at(began + self._world.store.commit_time() * self.slowness, partial(self._land, commit, base, began))

    def _land(self, commit: _Commit, base: Snapshot, began: float) -> None:
        store = self._world.store
        if store.away or self._now < self.read_only_until:
            self._membership.unwritten()
            self._failed()
        elif store.snapshot.version == base.version:
            outcome = apply(base, commit.said)
            if outcome.after is base:
                self._turned(commit, outcome, None)
            else:
                outcome = replace(outcome, after=store.put(outcome.after))
                self._world.observer.wrote(outcome)
                self._turned(commit, outcome, self._now - commit.now.monotonic)
        else:
            store.conflicts += 1
            if commit.attempt == ATTEMPTS:
                self._wait(self._pacing.jittered(LONGEST_RETRY_WAIT))
                return
            wait = self._rng.uniform(0, longest_wait(commit.attempt, self._now - began))
            self._at(self._now + wait + store.look_time() * self.slowness, partial(self._again, commit))

    def _again(self, commit: _Commit) -> None:
        if self._world.store.away:
            self._membership.unwritten()
            self._failed()
            return
        base = self._world.store.look(self._known)
        self._known = base.version
        self._attempt(commit, base)

    def _turned(self, commit: _Commit, outcome: Outcome, took: float | None) -> None:
        member, now, snapshot = self._membership, commit.now, outcome.after
        self._known, self._failures = snapshot.version, 0
        member.written(outcome, now)
        if commit.farewell and self._stopping:
            self.crash()
            self._stopping()
            return
        waits = member.waits(snapshot)
        self._pacing.turned(
            now.monotonic, members=len(snapshot.members), waits=waits, took=took, decision=commit.decision
        )
        self._wait()

    def _failed(self) -> None:
        """The store could not be read, or not be written."""
        self._failures += 1
        if self._stopping:
            # Nobody can be told: what it holds will expire.
            self.crash()
            self._stopping()
            return
        self._wait(self._pacing.pause(self._failures))

    # --- the query -----------------------------------------------------------------------------------------------

    def _plan_at(self, time: float) -> None:
        self._query_at(time, self._plan)

    def _end_at(self, time: float) -> None:
        self._query_at(time, self._end)

    def _query_at(self, time: float, what: Callable[[], None]) -> None:
        self._world.engine.at(time, partial(self._query_do, self._batch_number, what))

    def _query_do(self, number: int, what: Callable[[], None]) -> None:
        if number != self._batch_number or not self.running:
            return
        if self._now < self.until_awake:
            self._world.engine.at(self.until_awake, partial(self._query_do, number, what))
        else:
            what()

    def _plan(self) -> None:
        """Begin a batch with what there is, or look again later."""
        hub, query, now, starts = self._world.hub, self._world.query, self._now, self._plannable()
        if now >= self._measured + _MEASURED_EVERY:
            self._measured = now
            ends = {partition: hub.end(partition, now) for partition in starts}
            positions = {partition: first for partition, (_, first) in starts.items()}
            loads = self._meter.update(now, ends, positions) or {}
            self._membership.measure(loads, self._member_meter.load(self._meter.total()))
        ranges, events = hub.plan(starts, query.max_events, now)
        if not ranges:
            self._plan_at(now + self._pacing.jittered(query.trigger))
            return
        takes = (self._pacing.jittered(query.batch) + events / query.capacity) * self.slowness
        self._batch = Batch(ranges, now, now + takes)
        self._member_meter.batch_begins(now)
        self._membership.in_flight = frozenset(ranges)
        self._end_at(now + takes)

    def _plannable(self) -> dict[str, tuple[int, int]]:
        """As `Keeper.holdings`: partition → (epoch, where to begin)."""
        member = self._membership
        trying = self._away and self._now - self._looked < 2 * self._interval
        assured = self._now if trying else member.assured
        plannable, positions = {}, self._positions
        for partition, holding in in_force(member.plannable(), self._now, member.settings, assured).items():
            known = positions.get(partition)
            if known is None or known[0] != holding.epoch:
                known = holding.epoch, holding.checkpoint.next
            plannable[partition] = known
        return plannable

    def _end(self) -> None:
        """The sink has finished the batch, less what a new owner's receiver has cut off."""
        batch = self._batch
        assert batch is not None
        self._batch = None
        self._member_meter.batch_ends(self._now)
        ends = self._world.hub.deliver(batch.ranges, batch.part)
        self._positions |= ends
        for partition, (epoch, end) in ends.items():
            self._finished[partition] = Progress(epoch, Position(end - 1))
        self._membership.in_flight = frozenset()
        if not self._committing:
            self._wait()
        self._plan()
