"""Processes of a simulated group, each with a real member engine and a simulated query."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_ehbalance.errors import FencedError
from spark_ehbalance.group.changes import Outcome, Transition, apply
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.load_meter import LoadMeter
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.member.pacing import jittered
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import ATTEMPTS, longest_wait
from spark_ehbalance.simulation.engine import Engine
from spark_ehbalance.simulation.hub import SimulatedHub
from spark_ehbalance.simulation.scenario import QuerySettings
from spark_ehbalance.simulation.store import SimulatedStore

#: Seconds between two measurements of the load. The planner measures every second; the averages are the same.
_MEASURE_INTERVAL = 20.0

#: Start of the members' wall clocks, in milliseconds since 1970.
START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class World:
    """Environment shared by all members."""

    engine: Engine
    store: SimulatedStore
    hub: SimulatedHub
    query: QuerySettings
    #: Records a member's commit.
    record_commit: Callable[[str, Outcome], None]


@dataclass(slots=True)
class SimulatedBatch:
    """A batch in flight. `ranges` maps partition → (epoch, first, end). At the time `paused`, the batch is suspended
    for `pause` seconds."""

    ranges: Mapping[str, tuple[int, int, int]]
    began: float
    ends: float
    paused: float = float("inf")
    pause: float = 0.0

    def fraction_read(self, time: float) -> float:
        """The fraction of the batch that was read by `time`, from 0 to 1."""
        done = min(time, self.paused) + max(0.0, time - self.paused - self.pause) - self.began
        return max(0.0, min(1.0, done / (self.ends - self.began - self.pause)))


class Node:
    """A member's process. It runs from `start` until `stop`, which leaves the group, or until `crash`, which does not
    leave it."""

    def __init__(self, name: str, number: int, settings: Settings, world: World, rng: random.Random) -> None:
        self.name = name
        self.number = number  # of the member's process
        self.running = False
        self.skew_ms = 0
        self.slowness = 1.0
        self.suspended_until = 0.0
        self.read_only_until = 0.0
        self._world = world
        self._rng = rng
        world.hub.start(self._now)
        started_ms = START_MS + round(self._now * 1000)
        self._member = MemberEngine(Author(name, f"{name}.{number}"), settings, rng, latest_ms=started_ms)
        self._step = 0  # actions that were scheduled in earlier steps are dropped
        self._busy = False  # reading a new version, or committing
        self._stopping: Callable[[], None] | None = None
        self._known_version = -1  # last version read
        self._batch: SimulatedBatch | None = None
        self._batch_number = 0
        self._positions: dict[str, tuple[int, int]] = {}  # partition → (epoch, next sequence number)
        self._meter = LoadMeter()
        self._measured_at = 0.0

    # --- events --------------------------------------------------------------------------------------------------

    def start(self, after: float = 0.0) -> None:
        """Start `after` seconds from now."""
        self.running = True
        self._query_at(self._now + after, self._plan)
        self._read_at(self._now + after, self._balance)

    def stop(self, then: Callable[[], None]) -> None:
        """Leave the group, as `query.stop()` does, and discard the batch in flight. Afterwards, call `then`."""
        self._stopping = then
        self._member.handle(protocol.StopRequested(), self._clocks())
        self._batch, self._batch_number = None, self._batch_number + 1
        if not self._busy:
            self._wait()

    def crash(self) -> None:
        """End without leaving the group."""
        self.running = False
        self._step += 1
        self._batch_number += 1

    def pause(self, seconds: float) -> None:
        """Suspend the process, and with it the batch in flight."""
        self.suspended_until = self._now + seconds
        if self._batch is not None:
            self._batch.paused, self._batch.pause = self._now, seconds
            self._batch.ends += seconds
            self._batch_number += 1
            self._query_at(self._batch.ends, self._end)

    @property
    def is_awake(self) -> bool:
        """Whether the process is running and not suspended."""
        return self.running and self._now >= self.suspended_until

    @property
    def remaining_pause(self) -> float:
        """Seconds until the process resumes."""
        return max(0.0, self.suspended_until - self._now)

    # --- cycles, as in the lease keeper --------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._world.engine.now

    def _clocks(self) -> Clocks:
        return Clocks(self._now, START_MS + round(self._now * 1000) + self.skew_ms)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        """Run `action` at `time`, unless another action has been scheduled by then."""
        self._step = step = self._step + 1
        self._world.engine.at(time, partial(self._do, lambda: step == self._step, action))

    def _do(self, is_current: Callable[[], bool], action: Callable[[], None]) -> None:
        """Run `action` if it `is_current`, now or when the process resumes."""
        if not self.running or not is_current():
            return
        if self._now < self.suspended_until:
            self._world.engine.at(self.suspended_until, partial(self._do, is_current, action))
        else:
            action()

    def _wait(self) -> None:
        """Read the store when the next cycle is due."""
        self._busy = False
        self._read_at(max(self._now, self._member.due()), self._balance)

    def _handle(self, input: protocol.Input) -> None:
        """Pass `input` to the engine and carry out its outputs."""
        hub, outputs = self._world.hub, self._member.handle(input, self._clocks())
        if not outputs:
            self._wait()
        for output in outputs:
            match output:
                case protocol.ResolvePositions(partitions, latest_ms):
                    starts = hub.starting_positions(partitions, (latest_ms - START_MS) / 1000)
                    self._handle(protocol.PositionsResolved(starts))
                case protocol.CommitChanges(base, changes):
                    self._attempt(changes, base, 1, self._now)
                case protocol.CommitEnded(outcome):
                    self._known_version = outcome.after.version
                    self._wait()
                case protocol.Left():
                    self._finish_stop()
                case protocol.Fail(error):
                    if not isinstance(error, FencedError):
                        raise error
                    self.crash()

    def _balance(self, snapshot: Snapshot) -> None:
        if self._world.store.unreachable:
            self._report_failure(writing=False)
        else:
            self._handle(protocol.GroupRead(snapshot, self._world.hub.ids))

    def _read_at(self, time: float, then: Callable[[Snapshot], None]) -> None:
        """Read the store at `time` and pass the snapshot to `then`."""
        self._at(time + self._world.store.read_time() * self.slowness, partial(self._read_new, then))

    def _read_new(self, then: Callable[[Snapshot], None]) -> None:
        """Read the new versions, if the first request found any. The last request only finds that there are no more
        versions, so the result is the newest version from before that request."""
        store = self._world.store
        remaining = store.remaining_requests(self._known_version)
        if remaining:
            self._busy = True
            self._at(self._now + store.read_time(remaining - 1) * self.slowness, partial(self._read_last, then))
        else:
            then(store.snapshot)

    def _read_last(self, then: Callable[[Snapshot], None]) -> None:
        store = self._world.store
        self._known_version = store.snapshot.version
        self._at(self._now + store.read_time() * self.slowness, partial(then, store.snapshot))

    def _attempt(self, changes: Sequence[Transition], base: Snapshot, attempt: int, since: float) -> None:
        """Commit like `lease_table.contract.commit`. `since` is the time of the first attempt."""
        self._busy = True
        land = partial(self._finish_attempt, changes, base, attempt, since, self._now)
        self._at(self._now + self._world.store.attempt_time() * self.slowness, land)

    def _finish_attempt(
        self, changes: Sequence[Transition], base: Snapshot, attempt: int, since: float, began: float
    ) -> None:
        store = self._world.store
        if store.unreachable or self._now < self.read_only_until:
            self._report_failure(writing=True)
        elif store.snapshot.version == base.version:
            outcome = apply(base, changes)
            if outcome.after is not base:
                outcome = replace(outcome, after=store.write(outcome.after), seconds=self._now - began)
                self._world.record_commit(self.name, outcome)
            self._handle(protocol.Committed(outcome, self._now - since))
        else:
            store.conflicts += 1
            if attempt == ATTEMPTS:
                self._handle(protocol.RacesLost())
                return
            wait = self._rng.uniform(0, longest_wait(attempt, self._now - began))
            self._read_at(self._now + wait, partial(self._retry, changes, attempt + 1, since))

    def _retry(self, changes: Sequence[Transition], attempt: int, since: float, base: Snapshot) -> None:
        if self._world.store.unreachable:
            self._report_failure(writing=True)
        else:
            self._attempt(changes, base, attempt, since)

    def _report_failure(self, *, writing: bool) -> None:
        """Report a failed read or write to the engine."""
        self._handle(protocol.StoreFailed(writing))
        if self._stopping:
            self._finish_stop()  # its leases will expire

    def _finish_stop(self) -> None:
        assert self._stopping is not None
        self.crash()
        self._stopping()

    # --- the query -----------------------------------------------------------------------------------------------

    def _query_at(self, time: float, action: Callable[[], None]) -> None:
        """Run `action` at `time`, unless the batch is interrupted earlier."""
        number = self._batch_number
        self._world.engine.at(time, partial(self._do, lambda: number == self._batch_number, action))

    def _plan(self) -> None:
        """Begin a batch with the available events, or retry later."""
        hub, query, now, starts = self._world.hub, self._world.query, self._now, self._starts()
        if now >= self._measured_at + _MEASURE_INTERVAL:
            self._measured_at = now
            ends = {partition: hub.end(partition, now) for partition in starts}
            positions = {partition: first for partition, (_, first) in starts.items()}
            self._meter = self._meter.measured(now, ends, positions)
            self._member.measure(self._meter.loads(), self._meter.member_load())
        ranges, events = hub.plan(starts, query.max_events, now)
        if not ranges:
            self._query_at(now + jittered(query.trigger, self._rng), self._plan)
            return
        seconds = (jittered(query.batch, self._rng) + events / query.capacity) * self.slowness
        self._batch = SimulatedBatch(ranges, now, now + seconds)
        self._meter = self._meter.batch_begun(now)
        self._member.begin_batch({partition: epoch for partition, (epoch, _, _) in ranges.items()}, now)
        self._query_at(now + seconds, self._end)

    def _starts(self) -> dict[str, tuple[int, int]]:
        """Partitions for the next batch: partition → (epoch, next sequence number)."""
        starts, positions = {}, self._positions
        for partition, holding in self._member.readable(self._now).items():
            known = positions.get(partition)
            if known is None or known[0] != holding.epoch:
                known = holding.epoch, holding.checkpoint.next
            starts[partition] = known
        return starts

    def _end(self) -> None:
        """End the batch. If a new owner's receiver disconnected this member's receiver, later events are not part of
        the batch."""
        batch = self._batch
        assert batch is not None
        self._batch = None
        self._meter = self._meter.batch_ended(self._now)
        ends = self._world.hub.deliver(batch.ranges, batch.fraction_read)
        self._positions |= ends
        self._member.finish_batch({p: Progress(epoch, Position(end - 1)) for p, (epoch, end) in ends.items()})
        if not self._busy:
            self._wait()
        self._plan()
