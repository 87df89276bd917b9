"""One process of a query: its lease keeper, planner and tasks, on the real `QueryEngine`. They are generators that
yield the seconds for which they wait. Requests reach the lease table even while the process is suspended or dead."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from spark_ehbalance.errors import (
    DataLossError,
    EhBalanceError,
    ForeignReaderError,
    HubUnavailableError,
    StoreUnavailableError,
)
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.changes import Join, Outcome, Stall, Transition, apply
from spark_ehbalance.group.member import protocol as member_protocol
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import REACTIVE, STRATEGIES
from spark_ehbalance.lease_table.contract import ATTEMPTS, REQUEST_TIMEOUT, longest_wait
from spark_ehbalance.query import protocol
from spark_ehbalance.query.consistency import mismatch
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.offsets import FirstStart, StreamOffset, group_name
from spark_ehbalance.query.progress_policy import LeaseTableProgress
from spark_ehbalance.query.range_lease import is_owned
from spark_ehbalance.query.replay import LoggedBatches, recover
from spark_ehbalance.simulation.members import START_MS

if TYPE_CHECKING:
    from storm.query import Query

_T = TypeVar("_T")
Waiting = Generator[float, None, _T]

LOCATION = "/leases"

#: Maximum drift of monotonic clocks, as a fraction, and maximum error of wall clocks. Two wall clocks differ by less
#: than `CLOCK_SKEW_ALLOWANCE`.
DRIFT, SKEW_MS = 1e-4, 150_000

#: Seconds, as in the planner and the keeper: for joining, for the last commit, for the sink's read of the table, and
#: between two plans while there is a backlog.
_JOIN_TIMEOUT, _STOP_TIMEOUT, _READ_TIMEOUT, _BACKLOG_WAIT = 60.0, 5.0, 120.0, 0.5

#: Seconds after which a process fails because a foreign reader keeps its partition.
_FOREIGN_READER_TIMEOUT = 90.0

#: What can happen to a commit during a period of bad commits. `unknown`: it is applied, but the answer is lost. `late`:
#: it is applied after the process has given it up, if the table has not changed.
_FATES = ("", "delayed", "unknown", "late", "unsent", "raced")


def _hub_unreachable() -> HubUnavailableError:
    return HubUnavailableError("EHB_HUB_UNREACHABLE", what="Simulated hub", reason="no answer")


def _table_unreachable() -> StoreUnavailableError:
    table = f"Lease table {LOCATION}"
    return StoreUnavailableError("EHB_LEASE_TABLE_UNAVAILABLE", what=table, action="read", reason="no answer")


class Thread:
    """Runs `work` in simulated time, and pauses while the process is suspended."""

    def __init__(self, process: Process, work: Waiting[None], *, of_planner: bool = False) -> None:
        self._process, self._work, self._of_planner = process, work, of_planner
        self._step = 0
        self.resume_at(process.now)

    def resume_at(self, time: float) -> None:
        """Continue at `time` instead of the scheduled time."""
        self._step += 1
        self._process.world.engine.at(time, partial(self._run, self._step))

    def _run(self, step: int) -> None:
        process = self._process
        if step != self._step or not process.running:
            return
        in_planner = self._of_planner or (self is process.spark and process.in_planner)
        in_spark = self is process.spark and not process.in_planner
        until = max(
            process.suspended_until,
            process.planner_suspended_until if in_planner else 0.0,
            process.spark_suspended_until if in_spark else 0.0,
        )
        if process.now < until:
            process.world.engine.at(until, partial(self._run, step))
            return
        try:
            self.resume_at(process.now + next(self._work))
        except StopIteration:
            pass
        except EhBalanceError as error:
            process.fail(error)


class Process:
    """A process of `query`. `at_stage` maps a stage to the fault that occurs when the process enters it."""

    def __init__(self, query: Query, number: int) -> None:
        self.query, self.plan, self.world = query, query.plan, query.world
        self.checkpoint, self.sink = query.checkpoint, query.sink
        self.author = Author(query.plan.owner, f"{query.plan.owner}.{number}")
        self.rng = rng = random.Random(f"{self.world.plan.seed} {self.author.incarnation}")
        self.drift, self.skew_ms = rng.uniform(-DRIFT, DRIFT), rng.randint(-SKEW_MS, SKEW_MS)
        self.running, self.stopping, self.left, self.stage = True, False, False, "starting"
        self.joined = False  # as far as the process knows
        self.suspended_until = self.planner_suspended_until = self.suspended_in_commit = 0.0
        self.spark_suspended_until = 0.0
        self.unreachable_until = self.read_only_until = self.bad_commits_until = self.hub_unreachable_until = 0.0
        self.at_stage: dict[str, Callable[[], None]] = {}
        self.failing_tasks = 0
        self.engine: QueryEngine | None = None
        self.offset, self.offsets_at_start = StreamOffset(query.plan.owner), list[StreamOffset]()
        self.error: EhBalanceError | None = None
        self.in_planner = self.gave_up_planning = False
        #: Partition → its end when the process started. AvailableNow must read up to it.
        self.promised = {p: partition.end for p, partition in self.world.hub.partitions.items()}
        #: Partition → epoch of the running batch.
        self.reading: Mapping[str, int] = {}
        #: The last times at which the store did not answer a read; at which the table had not changed for half a lease
        #: duration.
        self.unreachable_at = self.unwritable_at = float("-inf")
        #: The time of the last read, and the newest version that was read.
        self.read_at, self.known_version = float("inf"), -1
        #: The time at which the last successful commit began.
        self.wrote_at = float("-inf")
        #: The times at which a read or a failed commit ended half a lease duration without a successful read or commit.
        self.blind_at: list[float] = []
        self._reads_begun = self._reads_ended = 0
        self._keeper_idle = False
        self._states, self._states_at, self._stale = self.world.hub.states(), self.now, rng.uniform(0.5, 5.0)
        self._hub = self.world.hub.reference
        self.spark = Thread(self, query.run(self))

    @property
    def now(self) -> float:
        return self.world.engine.now

    @property
    def monotonic(self) -> float:
        return self.now * (1 + self.drift)

    @property
    def is_awake(self) -> bool:
        return self.running and self.now >= max(self.suspended_until, self.planner_suspended_until)

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.monotonic, START_MS + round(self.now * 1000) + self.skew_ms)

    @property
    def member(self) -> MemberEngine:
        assert self.engine is not None, "it has started"
        return self.engine.member

    def may_plan(self) -> dict[str, int]:
        """Partition → epoch, for all partitions that the next batch can contain."""
        if self.engine is None:
            return {}
        return {p: holding.epoch for p, holding in self.member.readable(self.monotonic, replay=True).items()}

    @property
    def is_of_another_hub(self) -> bool:
        """Whether the process's positions belong to a hub that has been recreated since."""
        return self.offset.hub not in (None, self.world.hub.reference)

    @property
    def sought(self) -> frozenset[str]:
        """Partitions that were sought since the replayed batch was logged."""
        return self.engine.batch.sought if self.engine and self.engine.batch else frozenset()

    def enter(self, stage: str) -> None:
        self.stage = stage
        if (fault := self.at_stage.pop(stage, None)) is not None:
            fault()

    def note(self, what: str, partition: str = "") -> None:
        self.world.note(f"{self.author.incarnation} {what}", partition)

    # --- its end -------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """End the query with `error`. It leaves the group if it can."""
        self.world.witness.check_error(self, error)
        self.note(f"fails: {type(error).__name__}: {error}")
        if self.error is None and self.engine is not None:
            self.stop()
        else:
            self.end()

    def stop(self) -> None:
        """Leave the group, as `query.stop()` does, and drop the batch in flight."""
        self.stopping, self.reading = True, {}
        self.spark.resume_at(float("inf"))
        if self.engine is None:
            self.end()
            return
        self.handle(member_protocol.StopRequested())
        self.world.engine.at(self.now + _STOP_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        until = max(self.suspended_until, self.planner_suspended_until)
        if self.now < until:
            self.world.engine.at(until, self._give_up)
        elif self.running:
            self.end()

    def end(self) -> None:
        """End the process."""
        self.running, self.reading = False, {}
        self.world.hub.disconnect(self)

    # --- the lease keeper ----------------------------------------------------------------------------------------

    def handle(self, input: protocol.Input) -> list[protocol.Output]:
        """Pass `input` to the engine, and wake the keeper if its next cycle is due earlier."""
        if self.error is not None:
            raise self.error
        assert self.engine is not None, "it has started"
        outputs = self.engine.handle(input, self.clocks)
        if self._keeper_idle:
            self._keeper.resume_at(self._due())
        self.world.witness.check(self, self.may_plan())
        self.world.witness.check_outage(self)
        return outputs

    def _due(self) -> float:
        return max(self.now, self.member.due() / (1 + self.drift) + 1e-6)  # rounding must not make it too early

    def _run_keeper(self) -> Waiting[None]:
        while True:
            answer: protocol.Input | None = member_protocol.Tick()
            while answer is not None:
                joined = self.joined or self.member._member.joined
                outputs = self.handle(answer)
                if joined and isinstance(answer, member_protocol.GroupRead):
                    self.world.witness.check_membership(self, answer.snapshot, outputs)
                answer = None
                for output in outputs:
                    match output:
                        case member_protocol.ReadGroup():
                            answer = yield from self._read_group()
                        case member_protocol.ResolvePositions(partitions):
                            yield 0.05
                            starts = self.world.hub.starting_positions(partitions) if self._can_reach_hub() else None
                            answer = member_protocol.PositionsResolved(starts)
                        case member_protocol.CommitChanges(base, changes):
                            answer = yield from self._write(base, changes)
                        case member_protocol.Left():
                            self.left = True
                            self.end()
                        case member_protocol.Fail(error):
                            self.error = error
                            self.fail(error)
            self._keeper_idle = True
            yield self._due() - self.now
            self._keeper_idle = False

    def _read_group(self) -> Waiting[member_protocol.Input]:
        self._reads_begun += 1
        number = self._reads_begun
        snapshot = yield from self._read()
        if snapshot is None:
            self.unreachable_at = self.now
            return member_protocol.StoreFailed(False)
        self._reads_ended, self.unreachable_at = number, float("-inf")
        self.world.witness.record_read(self, snapshot)
        return member_protocol.GroupRead(snapshot, tuple(self._hub_states()), self._hub.created_ms)

    def _read(self) -> Waiting[Snapshot | None]:
        store, timeout = self.world.store, min(REQUEST_TIMEOUT, self.plan.lease_duration / 6)  # as in `assembly`
        requests = 1 + store.remaining_requests(self.known_version)
        half, answers = store.read_time(requests) / 2, list[Snapshot | None]()
        if not self._can_reach_store():  # the first request fails
            yield timeout if self.world.silent_store else min(2 * half / requests, timeout)
            return None

        def serve() -> None:
            answers.append(store.snapshot if self._can_reach_store() else None)
            if self.now - self.world.witness.changed_at > self.world.witness.longest_duration / 2:
                self.unwritable_at = self.now + half

        self.world.engine.at(self.now + half, serve)
        yield 2 * half
        if answers[0] is None and self.world.silent_store:
            yield max(0.0, timeout - 2 * half)
        return answers[0]

    def _can_reach_store(self) -> bool:
        return not self.world.store.unreachable and self.now >= self.unreachable_until

    def _can_write(self) -> bool:
        return self._can_reach_store() and self.now >= max(self.read_only_until, self.world.read_only_until)

    def _write(self, base: Snapshot, changes: Sequence[Transition]) -> Waiting[member_protocol.Input]:
        """Commit like `lease_table.contract.commit`. During a period of bad commits, each attempt has a random fate."""
        since = self.now
        for attempt in range(1, ATTEMPTS + 1):
            began, fate = self.now, self.rng.choice(_FATES) if self.now < self.bad_commits_until else ""
            if fate == "raced":
                yield self.world.store.attempt_time()
                return member_protocol.RacesLost()
            answer = yield from self._attempt(base, changes, fate)
            if isinstance(answer, Outcome):
                self.wrote_at = since if answer.accepted else self.wrote_at
                self.joined |= any(isinstance(transition, Join) for transition in answer.accepted)
                self.known_version = max(self.known_version, answer.after.version)
                return member_protocol.Committed(answer, self.now - since)
            if answer == "unavailable":
                break
            yield self.rng.uniform(0, longest_wait(attempt, self.now - began))
            snapshot = yield from self._read()
            if snapshot is None:
                break
            base = snapshot
        else:
            return member_protocol.RacesLost()
        self.world.witness.record_failed_write(self)
        return member_protocol.StoreFailed(True)

    def _attempt(self, base: Snapshot, changes: Sequence[Transition], fate: str) -> Waiting[Outcome | str]:
        answers, began, store = list[Outcome | str](), self.now, self.world.store

        def arrive() -> None:
            if not self._can_write():
                answers.append("unavailable")
            elif store.snapshot.version != base.version:
                store.conflicts += 1
                answers.append("conflict")
            else:
                answers.append(self.world.apply_outcome(apply(base, changes), self.now - began))

        takes = store.attempt_time() + (self.rng.uniform(1, 25) if fate == "delayed" else 0.0)
        arrives = self.rng.uniform(1, 6) * REQUEST_TIMEOUT if fate == "late" else takes / 2
        if fate != "unsent":
            self.world.engine.at(self.now + arrives, arrive)
        if self.suspended_in_commit:
            self.suspended_until, self.suspended_in_commit = self.now + self.suspended_in_commit, 0.0
        yield takes if fate in ("", "delayed") else REQUEST_TIMEOUT
        return answers[0] if fate in ("", "delayed") else "unavailable"

    # --- the hub -------------------------------------------------------------------------------------------------

    def _can_reach_hub(self) -> bool:
        return self.now >= max(self.world.hub.unreachable_until, self.hub_unreachable_until)

    def _hub_states(self, oldest: float | None = None) -> Mapping[str, PartitionState]:
        """The states that the hub watcher has cached. If the hub answers, they are at most `oldest` seconds old."""
        if self.now - self._states_at > (self._stale if oldest is None else oldest) and self._can_reach_hub():
            self._states, self._states_at = self.world.hub.states(), self.now
            self._hub = self.world.hub.reference
        return self._states

    def _refresh(self) -> Waiting[None]:
        """Wait for new states of the hub. Raises `HubUnavailableError` if it does not answer within the timeout."""
        yield 0.02
        if not (yield from self._wait_for(self._can_reach_hub, self.world.plan.receiver_timeout)):
            raise _hub_unreachable()
        self._hub_states(0.0)

    def _report(self) -> protocol.HubReport:
        """A report with the states that the hub watcher has cached. Raises `HubUnavailableError` if they are too old,
        and the hub does not answer."""
        if not self._can_reach_hub() and self.now - self._states_at > self.world.plan.receiver_timeout:
            raise _hub_unreachable()
        return protocol.HubReport(self._hub_states(), self._hub.created_ms, 1.0)

    # --- the planner ---------------------------------------------------------------------------------------------

    def start(self, finished: StreamOffset | None, unfinished: StreamOffset | None) -> Waiting[None]:
        """Start the planner, like `assembly.start_planner`."""
        self.in_planner, world, plan = True, self.world, self.plan
        logged = LoggedBatches(finished or StreamOffset(plan.owner), unfinished or StreamOffset(plan.owner))
        yield self.rng.uniform(0.05, 0.5)
        if not self._can_reach_hub():
            raise _hub_unreachable()
        self._hub = world.hub.reference
        lineage = logged.unfinished.lineage or logged.finished.lineage or f"lineage of {self.author.incarnation}"
        first = logged.last.first_start or FirstStart(self.clocks.wall_ms, len(world.hub.partitions))
        self.offset = StreamOffset(
            plan.owner,
            group=group_name(LOCATION),
            lineage=lineage,
            run=self.author.incarnation,
            hub=self._hub,
            first_start=first,
        )
        found = yield from self._read()
        if found is None:
            raise _table_unreachable()
        if wrong := mismatch(logged.last, found if found.leases else None, self._hub, LOCATION):
            raise wrong
        progress, earlier = recover(logged, found, lineage)
        member = MemberEngine(
            self.author,
            self._settings(lineage),
            random.Random(self.rng.random()),
            query=logged.query_state(progress),
            resume=logged.resumed(),
            latest_ms=first.at_ms,
            checked=found,
        )
        self.engine = QueryEngine(
            member,
            LeaseTableProgress(self.offset, LOCATION),
            fail_on_data_loss=self.query.fails_on_loss,
            earlier=earlier,
            probe_again=world.plan.receiver_timeout,
        )
        self._keeper = Thread(self, self._run_keeper(), of_planner=True)
        # As in `datasource._running_planner`: since Spark 4.2, the default trigger's first batch may be planned before.
        full_share, owned = plan.one_batch or plan.available_now or unfinished is not None, 0
        while not (yield from self._wait_for(lambda: bool(member.cycles or (not full_share and member.owned)))):
            if len(member.readable(self.monotonic)) <= owned:
                raise StoreUnavailableError("EHB_LEASE_TABLE_CONTENDED", timeout=_JOIN_TIMEOUT, location=LOCATION)
            owned = len(member.readable(self.monotonic))
        self.in_planner = False

    def _settings(self, lineage: str) -> Settings:
        plan, query = self.world.plan, self.plan
        return Settings(
            STRATEGIES[query.strategy],
            query.lease_duration,
            plan.handover_timeout,
            query.max_owned,
            strategy_name=query.strategy,
            lineage=lineage,
            balance_interval=plan.balance_interval,
            reactive=query.strategy in REACTIVE,
            max_stall=plan.max_stall,
        )

    def _wait_for(self, condition: Callable[[], bool], timeout: float = _JOIN_TIMEOUT) -> Waiting[bool]:
        """Wait until `condition` is true. Returns False after `timeout` seconds. Raises the error that ended the
        keeper, if there is one."""
        until = self.now + timeout
        while not condition():
            if self.error is not None:
                raise self.error
            if self.now >= until:
                return False
            yield 0.25
        return True

    def latest_offset(self, start: StreamOffset) -> Waiting[StreamOffset]:
        """Plan a batch, like `Planner.latest_offset`."""
        self.in_planner = True
        yield 0.001
        assert self.engine is not None, "it has started"
        self.handle(protocol.BatchFinished(start))
        give_up_at = self.now + _JOIN_TIMEOUT
        while True:
            if self.plan.available_now:
                yield from self._fix_ends()
            planned = yield from self._request(protocol.BatchRequested(start, self.plan.limit, self._report()))
            assert isinstance(planned, protocol.BatchPlanned)
            self.world.witness.check_plan(self, None if planned.end is start else planned.end)
            if planned.end is not start or not planned.unread:
                break
            if self.now >= give_up_at:
                self.gave_up_planning = True
                break
            yield _BACKLOG_WAIT
        self.in_planner = False
        if planned.end is not start:
            return planned.end
        return self.engine.policy.empty_end(start, self.member.table)

    def _fix_ends(self) -> Waiting[None]:
        engine, member = self.engine, self.member
        assert engine is not None
        first = engine.fixed_ends is None
        if first:
            before = member.idle_cycles
            self.handle(member_protocol.RebalancingBegan())
            yield from self._wait_for(lambda: member.idle_cycles > before)
            self.handle(member_protocol.RebalancingEnded())
        if engine.without_fixed_end or first:
            yield from self._refresh()
            self.handle(protocol.EndsFixed(self._report()))

    def ranges(self, end: StreamOffset) -> Waiting[Sequence[OffsetRange]]:
        """The ranges of a batch, like `Planner.ranges`."""
        self.in_planner, engine = True, self.engine
        yield 0.001
        assert engine is not None
        answer = yield from self._request(
            protocol.RangesRequested(end), lambda: engine.knows_owners(end, self.monotonic)
        )
        assert isinstance(answer, protocol.RangesPlanned)
        self.in_planner = False
        return answer.ranges

    def _request(self, request: protocol.Input, ready: Callable[[], bool] = lambda: True) -> Waiting[protocol.Output]:
        while True:
            yield from self._wait_for(ready)
            for output in self.handle(request):
                match output:
                    case protocol.Probe(waits=True):
                        yield from self._probe(output)
                        request = protocol.HubReported(self._report())
                    case protocol.Probe():
                        Thread(self, self._probe(output), of_planner=True)
                    case protocol.BatchPlanned() | protocol.RangesPlanned():
                        return output
                    case protocol.Refresh():
                        self.enter("planning")
                        yield from self._refresh()
                        request = protocol.HubReported(self._report())
                    case protocol.CatchUp():
                        self.enter("planning")
                        yield 0.02
                        self._hub_states(0.0)
                        request = protocol.HubReported(self._report())

    def _probe(self, probe: protocol.Probe) -> Waiting[None]:
        hub, ends = self.world.hub, dict[str, int]()
        yield 0.1
        silent = [
            p for p in probe.positions if not self._is_delivering(p) or not len(self._events(p, probe.positions[p]))
        ]
        if silent:
            yield self.world.plan.receiver_timeout
        for p, position in probe.positions.items():
            if self._is_delivering(p) and (events := self._events(p, position)):
                hub.connect(self, p, probe.epochs[p])
                ends[p] = min(position + 1 + self.rng.randrange(20), events.stop)
        self.handle(protocol.Probed(probe.positions, ends))

    def _events(self, partition: str, position: int) -> range:
        return range(position, self.world.hub.partitions[partition].end)

    def _is_delivering(self, partition: str) -> bool:
        return self._can_reach_hub() and self.now >= self.world.hub.partitions[partition].silent_until

    def report(self, end: StreamOffset) -> None:
        """Report, like the listener that `register` installs, that the sink has finished the batch ending at `end`."""
        assert self.engine is not None, "it has started"
        if self.engine.batch is not None and end == self.engine.batch.end:
            self.handle(protocol.BatchFinished(end))

    def find_lost(self) -> Waiting[frozenset[str]]:
        """The partitions of the batch that the query has lost, according to a read that begins now."""
        wanted = self._reads_begun + 1
        self.handle(member_protocol.ReadRequested())
        if not (yield from self._wait_for(lambda: self._reads_ended >= wanted, _READ_TIMEOUT)):
            raise _table_unreachable()
        assert self.engine is not None
        assert self.engine.batch is not None
        return frozenset(self.engine.batch.lost(self.member.leases)[0])

    # --- tasks ---------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[OffsetRange]) -> Waiting[dict[str, OffsetRange]]:
        """Read `ranges` concurrently, like `RangeReader`. Returns each range up to where it was read."""
        rows, silent = {wanted.partition: replace(wanted, end=wanted.start) for wanted in ranges}, dict[str, float]()
        left, most = {wanted.partition: wanted for wanted in ranges}, self.world.plan.batch_seconds
        speed = max(map(len, ranges), default=0) / max(0.01, self.rng.uniform(0, 2 * most))
        while left:
            seconds = min(0.5, 0.25 + most / 20)
            yield seconds
            if self.failing_tasks:  # the next attempt reads all ranges from the beginning
                self.failing_tasks -= 1
                rows, silent = {wanted.partition: replace(wanted, end=wanted.start) for wanted in ranges}, {}
                left = {wanted.partition: wanted for wanted in ranges}
            for p, wanted in list(left.items()):
                row, hub = rows[p], self.world.hub.partitions[p]
                if self._can_reach_hub() and not self.world.hub.connect(self, p, wanted.epoch):
                    if not (yield from self._is_owned(wanted)):
                        self.note(f"has lost the partition, and stops reading at {row.end}", p)
                        del left[p]
                    elif silent.setdefault(f"{p} foreign", self.now) < self.now - _FOREIGN_READER_TIMEOUT:
                        level = max(hub.readers.values())
                        raise ForeignReaderError("EHB_FOREIGN_READER", partition=p, level=level, own_level=wanted.epoch)
                    continue
                if self._is_delivering(p) and row.end < hub.begin:
                    self._report_loss(wanted, row.end, hub.begin)
                    row = rows[p] = replace(row, end=min(wanted.end, hub.begin))
                count = min(wanted.end, hub.end, row.end + 1 + int(speed * seconds)) - row.end
                if self._is_delivering(p) and count > 0:
                    rows[p] = replace(row, end=row.end + count)
                    silent.pop(p, None)
                elif silent.setdefault(p, self.now) < self.now - self.world.plan.receiver_timeout:
                    yield from self._record_stall(wanted)
                    del left[p]
                if rows[p].end == wanted.end:
                    left.pop(p, None)
        return {p: row for p, row in rows.items() if len(row)}

    def _report_loss(self, wanted: OffsetRange, start: int, end: int) -> None:
        reason = f"the first retained event is {end}"
        error = DataLossError("EHB_EVENTS_LOST", partition=wanted.partition, position=start, reason=reason)
        if self.query.fails_on_loss:
            raise error
        self.world.witness.record_reported_loss(self, wanted.partition, end)

    def _lease(self, partition: str) -> Waiting[Lease | None]:
        snapshot = yield from self._read()
        if snapshot is None:
            raise _table_unreachable()
        return snapshot.leases.get(partition)

    def _is_owned(self, wanted: OffsetRange) -> Waiting[bool]:
        lease = yield from self._lease(wanted.partition)
        return is_owned(lease, wanted, self.plan.owner, epochs=True)

    def _record_stall(self, wanted: OffsetRange) -> Waiting[None]:
        """Handle a silent partition: record the stall if the hub answers; otherwise fail the batch."""
        p, epoch, by = wanted.partition, wanted.epoch, Author(self.plan.owner, "")
        if not self._can_reach_hub():
            raise self._silence_error(p, "the hub is unreachable")
        stall = Stall(by=by, at_ms=self.clocks.wall_ms, partition=p, epoch=epoch, since_ms=wanted.since_ms)
        yield self.world.store.attempt_time()
        if not self._can_write():
            raise self._silence_error(p, "the stall cannot be recorded")
        if self.world.apply_outcome(apply(self.world.store.snapshot, [stall])).accepted:
            self.note("is silent: stalled", p)
        elif (yield from self._is_owned(wanted)):
            raise self._silence_error(p, "the stall was rejected")

    def _silence_error(self, partition: str, reason: str) -> HubUnavailableError:
        timeout = self.world.plan.receiver_timeout
        return HubUnavailableError("EHB_PARTITION_SILENT", partition=partition, timeout=timeout, reason=reason)
