"""A storm: runs the group of a plan, injects the plan's faults, and checks that the group recovers after the last."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, pstdev

from spark_ehbalance.group.changes import Drain, Outcome, RecordHub, Restore, Transition, apply
from spark_ehbalance.group.commands import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.protocol import LeaveRequested
from spark_ehbalance.group.model import Author, MemberState
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.weights import demands
from spark_ehbalance.query.positions import query_positions
from spark_ehbalance.simulation.engine import Engine
from spark_ehbalance.simulation.measures import Ledger
from spark_ehbalance.simulation.members import START_MS
from spark_ehbalance.simulation.scenario import StoreSettings
from spark_ehbalance.simulation.store import SimulatedStore
from storm.hub import StormHub
from storm.plan import FAULTS_BEGIN, FAULTS_END, RECOVERY, STAGES, Fault, Plan, QueryPlan
from storm.process import Process
from storm.query import Query
from storm.sinks import NumberedSink, OnceSink, Sink, Target
from storm.witness import Violation, Witness

OPERATOR = Author("operator", "")
EMPTY = Snapshot(Group("namespace", "hub", "$default"))

#: Seconds between two appends, and between two checks for ended queries, which are then restarted.
_APPEND_INTERVAL, _SUPERVISION_INTERVAL = 0.5, 3.0

#: Seconds for which the group must be balanced and without backlog at the end.
_STEADY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The number of faults by kind and stage, and the violation, if there was one, with its story."""

    fault_counts: Counter[tuple[str, str]]
    violation: Violation | None = None
    story: Sequence[str] = ()


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine, self.hub = Engine(), StormHub()
        self.rng = random.Random(f"world {plan.seed}")
        self.hub.grow(plan.partitions, plan.rate)
        self.store = SimulatedStore(
            StoreSettings(latency=plan.latency),
            EMPTY,
            random.Random(f"store {plan.seed}"),
        )
        self.fault_counts: Counter[tuple[str, str]] = Counter()
        self.read_only_until = self._outage_until = 0.0
        #: Begin of the current outage of the lease table, and whether requests fail only after a timeout.
        self.outage_since: float | None = None
        self.silent_store = False
        #: Whether the table or the hub was replaced, and whether a new table is about to be created.
        self.tampered = self._recreating = False
        #: Earlier contents of the table.
        self._backups: deque[Snapshot] = deque(maxlen=1000)
        self.story: deque[tuple[float, str, str]] = deque(maxlen=3000)
        self.witness = Witness(self)
        self._target, self._target_hub = Target(), self.hub.reference
        self.queries = [Query(query, self, _make_sink(query, self._target)) for query in plan.queries]

    def run(self) -> RunResult:
        violation: Violation | None = None
        for number, query in enumerate(self.queries):
            query.down_until = 0.0 if number % 2 else self.rng.uniform(0, 30)
        for fault in self.plan.faults:
            self.engine.at(fault.at, partial(self._run_fault, fault))
        self.engine.at(FAULTS_BEGIN, self._check_start)
        self.engine.at(FAULTS_END + 1, self._end_faults)  # the store answers again
        self._append()
        self._supervise()
        try:
            self.engine.run(FAULTS_END)
            self._recover()
        except Violation as found:
            violation = found
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            violation = Violation("crash", f"{type(error).__name__}: {error} in {where}")
        if violation is None:
            return RunResult(self.fault_counts)
        lines = [
            f"{at:9.3f}  {f'[{partition}] ' if partition else ''}{what}"
            for at, partition, what in self.story
            if not violation.partition or partition in ("", violation.partition)
        ]
        return RunResult(self.fault_counts, violation, lines)

    def note(self, what: str, partition: str = "") -> None:
        self.story.append((self.engine.now, partition, what))

    def apply_outcome(self, outcome: Outcome, seconds: float | None = None) -> Outcome:
        """Write the result of a commit to the store, and check it."""
        if outcome.after is outcome.before:
            return outcome
        self._backups.append(outcome.before)
        outcome = replace(outcome, after=self.store.write(outcome.after), seconds=seconds)
        self.witness.check_commit(outcome)
        return outcome

    def processes(self) -> Iterator[Process]:
        for query in self.queries:
            yield from query.processes

    def running(self) -> list[Process]:
        return [process for process in self.processes() if process.running]

    def _append(self) -> None:
        """Append events until half a minute after the last fault."""
        self.hub.append(_APPEND_INTERVAL)
        if self.engine.now < FAULTS_END + 30:
            self.engine.at(self.engine.now + _APPEND_INTERVAL, self._append)

    def _supervise(self) -> None:
        for query in self.queries:
            query.supervise()
        self.engine.at(self.engine.now + _SUPERVISION_INTERVAL, self._supervise)

    def _check_start(self) -> None:
        """Check that the group begins to read before the first fault."""
        early = any(query.down_until < FAULTS_BEGIN / 2 for query in self.queries)
        if early and not any(lease.epoch for lease in self.store.snapshot.leases.values()):
            raise Violation("start", f"no member has claimed a partition after {FAULTS_BEGIN:g} s")

    # --- recovery ------------------------------------------------------------------------------------------------

    def _end_faults(self) -> None:
        """Undo the operators' pins and drains. In half of the groups, also restart all queries at once, as a deployment
        does."""
        self.note("no more faults")
        for p in self.store.snapshot.ownership.pins:
            self._apply_order(Unpin(by=OPERATOR, at_ms=START_MS, partition=p))
        for id in self.store.snapshot.members:
            self._apply_order(Drain(by=OPERATOR, at_ms=START_MS, member=id, undo=True))
        deploys = self.rng.random() < 0.5
        for process in self.running():
            if process.engine is not None and (deploys or process.engine.member.query.leaving):
                process.stop()

    def _recover(self) -> None:
        """Run until, for `_STEADY_SECONDS` seconds, the group is balanced and has no backlog, and all queries run."""
        steady = 0.0
        while steady < _STEADY_SECONDS:
            if self.engine.now > FAULTS_END + RECOVERY:
                raise Violation("recovery", self._describe_unrecovered())
            self.engine.run(self.engine.now + 5.0)
            steady = steady + 5.0 if not self._describe_unrecovered() else 0.0

    def _describe_unrecovered(self) -> str:
        """A description of what has not recovered; empty if everything has."""
        for query in self.queries:
            if query.done_at < FAULTS_END + 30:
                stages = [f"{process.author.incarnation} is {process.stage}" for process in query.running]
                return f"{query.plan.owner} has not continued: {', '.join(stages) or 'it does not run'}"
        snapshot = self.store.snapshot
        if not self.is_of_hub(snapshot):
            return "the lease table belongs to an earlier hub"
        limits = self._limits().values()
        some = None not in limits and sum(limit or 0 for limit in limits) < len(self.hub.partitions)
        for p, what in self.witness.backlog().items():
            if not (some and what.endswith("owner None")):
                return f"partition {p} is {what}"
        if any(query.plan.available_now for query in self.queries):
            return ""
        for query in self.queries:
            row = snapshot.members.get(query.plan.owner)
            if [row and row.incarnation] != [process.author.incarnation for process in query.running]:
                return f"{query.plan.owner} is a member as {row and row.incarnation}"
        strangers = {lease.owner for lease in snapshot.leases.values()} - {query.plan.owner for query in self.queries}
        if not strangers <= ({None} if some else set()):
            return f"owners are {strangers}"
        return self._describe_imbalance()

    def _limits(self) -> dict[str, int | None]:
        """Query → `maxPartitionsOwned` of its running process. The next process may have another limit."""
        plans = [process.plan for query in self.queries for process in query.running]
        return {plan.owner: plan.max_owned for plan in [*(query.plan for query in self.queries), *plans]}

    def _describe_imbalance(self) -> str:
        """A description of how the partitions are distributed; empty if they are even in number or in load."""
        snapshot, rates = self.store.snapshot, {p: partition.rate for p, partition in self.hub.partitions.items()}
        ledger = Ledger(snapshot, lambda: self.engine.now, lambda: rates, self.plan.lease_duration)
        ledger.change(self._limits(), len(rates))
        owned = {query.plan.owner: snapshot.ownership.owned.get(query.plan.owner, ()) for query in self.queries}
        by_load = {query.plan.strategy for query in self.queries} <= {"cooperative", "transfer"}
        if ledger.balanced[-1][1] or (by_load and self._is_tolerable(owned)):
            return ""
        return f"partition counts are {[len(partitions) for partitions in owned.values()]}"

    def _is_tolerable(self, owned: Mapping[str, Sequence[str]]) -> bool:
        """Whether the measured loads are within `transfer.target`, and no member is idle."""
        known = demands(self.store.snapshot)
        loads = [sum(known.get(p, 0.0) for p in partitions) for partitions in owned.values()]
        return pstdev(loads) <= 0.25 * fmean(loads) and (min(loads) > 0 or max(map(len, owned.values())) < 2)

    # --- faults --------------------------------------------------------------------------------------------------

    def _run_fault(self, fault: Fault) -> None:
        getattr(self, f"_{fault.kind}")(fault)

    def _record(self, fault: Fault, what: str = "", stage: str = "") -> None:
        self.fault_counts[fault.kind, stage] += 1
        self.note(f"FAULT {fault.kind} {what} {fault.seconds:.1f} s")

    def _select_process(self, fault: Fault) -> list[Process]:
        """Select a running process for the fault, and record the fault. The result is empty if no process runs."""
        running = self.running()
        chosen = [running[fault.pick % len(running)]] if running else []
        for process in chosen:
            self._record(fault, process.author.incarnation, process.stage)
        return chosen

    def _end_time(self, fault: Fault) -> float:
        return self.engine.now + fault.seconds

    def _schedule_end(self, fault: Fault, action: Callable[[], None]) -> None:
        self.engine.at(self._end_time(fault), action)

    def _delay_restart(self, process: Process, fault: Fault) -> None:
        process.query.down_until = max(process.query.down_until, self._end_time(fault))
        self._change_limit(process.query, fault)

    def _change_limit(self, query: Query, fault: Fault) -> None:
        """Some queries that have a limit get another limit with the restart."""
        if query.plan.max_owned is not None and fault.luck < 0.5:
            query.plan = replace(query.plan, max_owned=1 + int(fault.choice * 8))

    def _kill(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            self._delay_restart(process, fault)
            process.end()

    def _kill_at(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            stage = STAGES[int(fault.choice * len(STAGES))]
            process.at_stage[stage] = partial(self._kill_now, process, fault)

    def _kill_now(self, process: Process, fault: Fault) -> None:
        """Kill the process. Some of its successors are suspended before they replay the batch."""
        self.note(f"{process.author.incarnation} is killed when {process.stage}")
        process.end()
        self._change_limit(process.query, fault)
        if fault.luck > 0.5:
            process.query.next_faults["logged"] = lambda next: self._suspend_now(next, "suspended_until", fault)

    def _stop(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            self._delay_restart(process, fault)
            process.stop()

    def _leave(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            if process.engine is not None and process.error is None:
                process.handle(LeaveRequested())
                self._schedule_end(fault, partial(self._stop_if_running, process))

    def _stop_if_running(self, process: Process) -> None:
        if process.running and process.error is None:
            process.stop()

    def _twin(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.query.had_twins = True
            for _ in range(1 if fault.luck < 0.8 else 2):
                twin = process.query.start()
                twin.bad_commits_until = self._end_time(fault) if fault.choice < 0.5 else 0.0

    def _suspend(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            self._suspend_now(process, "suspended_until", fault)

    def _suspend_at(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            stage = STAGES[int(fault.choice * len(STAGES))]
            process.at_stage[stage] = partial(self._suspend_now, process, "suspended_until", fault)

    def _suspend_spark_at(self, fault: Fault) -> None:
        """Suspend the JVM, as in a garbage collection, but not its planner."""
        for process in self._select_process(fault):
            stage = STAGES[int(fault.choice * len(STAGES))]
            process.at_stage[stage] = partial(self._suspend_now, process, "spark_suspended_until", fault)

    def _suspend_now(self, process: Process, what: str, fault: Fault) -> None:
        """Suspend the process. Some processes are killed soon afterwards; in others, Spark resumes later than the
        planner."""
        if (until := min(FAULTS_END, self._end_time(fault))) > self.engine.now:
            self.note(f"{process.author.incarnation} is {what} {until:.1f} when {process.stage}")
            setattr(process, what, max(getattr(process, what), until))
            if fault.luck < 0.3:
                process.at_stage["logged"] = partial(self._kill_now, process, fault)
            elif fault.luck > 0.7:
                process.spark_suspended_until = max(process.spark_suspended_until, until + 5 * fault.choice)

    def _suspend_planner(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.planner_suspended_until = max(process.planner_suspended_until, self._end_time(fault))

    def _suspend_in_commit(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.suspended_in_commit = self._end_time(fault)

    def _unreachable(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.unreachable_until = self._end_time(fault)

    def _read_only(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.read_only_until = self._end_time(fault)

    def _all_read_only(self, fault: Fault) -> None:
        self._record(fault)
        self.read_only_until = max(self.read_only_until, self._end_time(fault))

    def _outage(self, fault: Fault) -> None:
        self._record(fault)
        if not self.store.unreachable:
            self.outage_since, self.silent_store = self.engine.now, fault.choice < 0.5
        self.store.unreachable, self._outage_until = True, max(self._outage_until, self._end_time(fault))
        self._schedule_end(fault, self._end_outage)

    def _end_outage(self) -> None:
        self.store.unreachable = self.engine.now < self._outage_until
        if not self.store.unreachable:
            self.outage_since, self.silent_store = None, False

    def _bad_commits(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.bad_commits_until = self._end_time(fault)

    def _slow_store(self, fault: Fault) -> None:
        self._record(fault)
        self.store.slowness = 3.0 if fault.choice < 0.5 else 10.0
        self._schedule_end(fault, partial(setattr, self.store, "slowness", 1.0))

    def _clock(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.skew_ms = round((2 * fault.choice - 1) * 150_000)

    def _hub_unreachable(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.hub_unreachable_until = self._end_time(fault)

    def _hub_outage(self, fault: Fault) -> None:
        self._record(fault)
        self.hub.unreachable_until = max(self.hub.unreachable_until, self._end_time(fault))

    def _select_partition(self, fault: Fault) -> str:
        p = list(self.hub.partitions)[fault.pick % len(self.hub.partitions)]
        self._record(fault, f"of partition {p}")
        return p

    def _silence(self, fault: Fault) -> None:
        partition = self.hub.partitions[self._select_partition(fault)]
        partition.silent_until = max(partition.silent_until, self._end_time(fault))

    def _retention(self, fault: Fault) -> None:
        partition = self.hub.partitions[self._select_partition(fault)]
        partition.begin += int(fault.choice * (partition.end - partition.begin))

    def _burst(self, fault: Fault) -> None:
        self.hub.partitions[self._select_partition(fault)].appended += int(fault.choice * 200)

    def _grow(self, fault: Fault) -> None:
        if len(self.hub.partitions) < 32:
            self._record(fault)
            self.hub.grow(1 + int(fault.choice * 3), self.plan.rate)

    def _task_fails(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.failing_tasks += 1

    def _sink_fails(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            process.query.sink.fails = ("before", "half-way", "after")[int(fault.choice * 3)]

    def is_of_hub(self, content: Snapshot) -> bool:
        """Whether the positions in a table with this `content` belong to the current hub, and not to an earlier one."""
        return content.table is not None and content.table.hub_created_ms == self.hub.reference.created_ms

    # --- copies and restores -------------------------------------------------------------------------------------

    def _replace_table(self, content: Snapshot) -> None:
        self.tampered = True
        self.store.snapshot = replace(content, version=self.store.snapshot.version + 1)
        self.witness.reset()

    def _table_restored(self, fault: Fault) -> None:
        """Restore the table's folder, including the log, from a backup. (After a RESTORE, the store reports an error.)

        Not done if it would hide that a query has lost a partition of its last batches: docs/design.md explains why
        this cannot be detected.
        """
        if not self._backups:
            return
        content = self._backups[-1 - int(fault.choice**3 * len(self._backups))]
        leases = self.store.snapshot.leases or self._backups[-1].leases  # the table can have been deleted
        last = [batch.end.ranges for query in self.queries for batch in query.log[-2:]]
        read = [(p, range_.epoch) for ranges in last for p, range_ in ranges.items()]
        for process in self.running():
            read += process.reading.items()
            read += [(p, x.epoch) for p, x in process.member.query.progress.items()] if process.engine else []
        lost = [(p, epoch) for p, epoch in read if p in leases and epoch < leases[p].epoch]
        if all(p not in content.leases or content.leases[p].epoch != epoch for p, epoch in lost):
            self._record(fault)
            self._replace_table(content)

    def _table_deleted(self, fault: Fault) -> None:
        self._record(fault)
        self._replace_table(EMPTY)

    def _hub_recreated(self, fault: Fault) -> None:
        self._record(fault)
        self.tampered = True
        self.hub.recreate()
        self.witness.forget_hub()

    def _checkpoint_restored(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            query = process.query
            self._delay_restart(process, fault)
            query.had_copies = True
            length = int((1 - fault.choice**3) * len(query.checkpoint.offsets))
            self._schedule_end(fault, partial(self._roll_back_checkpoint, query, length))
            if fault.pick % 2:
                process.stop()
            else:
                process.end()

    def _roll_back_checkpoint(self, query: Query, length: int) -> None:
        """Roll a checkpoint back. If the sink skips known batch numbers, this is not done unless the last process that
        wrote to it has left, or to the state before the first batch, because that loses events, as docs/design.md
        explains."""
        detected = length > 0 and query.writer is not None and query.writer.left
        if not query.running and (detected or not isinstance(query.sink, NumberedSink)):
            self.note(f"the checkpoint of {query.plan.owner} is rolled back to {length} batches")
            query.checkpoint.restore(length)

    def _checkpoint_copied(self, fault: Fault) -> None:
        for process in self._select_process(fault):
            query = process.query
            query.had_twins = query.had_copies = True
            copy = query.start()
            copy.checkpoint = process.checkpoint.copy()
            if isinstance(process.sink, NumberedSink):
                copy.sink = deepcopy(process.sink)

    def remedy(self, process: Process, error: str) -> bool:
        """Follow the remedy of `error` in docs/errors.md. Returns False if no fault could have caused the error."""
        if error == "EHB_CHECKPOINT_STALE":
            query, log = process.query, process.checkpoint
            # Another process can have logged batches since, unless this one is alone with the checkpoint that it read.
            alone = query.running == [process] and log is query.checkpoint and log.offsets == process.offsets_at_start
            query.replace_checkpoint(process)
            return query.had_copies or self.tampered or (query.had_twins and not alone)
        if not self._recreating:
            self._recreating = True
            self.engine.at(self.engine.now + 20.0, partial(self._create_table, process.query))
        return self.tampered

    def _create_table(self, failed: Query) -> None:
        """Stop all queries, create a table with the positions in the checkpoints that used the same table as the
        `failed` query's, and start all queries with new checkpoints."""
        self._recreating, hub, at_ms = False, self.hub, START_MS + round(self.engine.now * 1000)
        for process in self.running():
            process.end()
        lost = failed.log[-1].end.table if failed.log else None
        logs = {
            query.plan.owner: [query.log]
            for query in self.queries
            if query.log and query.log[-1].end.hub == hub.reference and lost in (None, query.log[-1].end.table)
        }
        named = query_positions(logs, None).named if logs else {}
        self.note(f"a lease table is created with the positions {named}")
        by = replace(OPERATOR, incarnation=f"init at {self.engine.now:.3f}")
        transitions: list[Transition] = []
        for p, start in hub.starting_positions(hub.partitions).items():
            if p not in named:  # `init` reports these partitions, and where they begin
                self.witness.record_loss(p, start.next)
            known = named.get(p, start)
            assert isinstance(known, Position)
            transitions.append(Restore(by=by, at_ms=at_ms, partition=p, checkpoint=known))
        assert hub.reference.created_ms is not None
        transitions.append(RecordHub(by=by, at_ms=at_ms, created_ms=hub.reference.created_ms))
        self._replace_table(apply(EMPTY, transitions).after)
        if self._target_hub != hub.reference:
            self._target, self._target_hub = Target(), hub.reference
        for query in self.queries:
            query.restart_from_scratch()
            if isinstance(query.sink, OnceSink):
                query.sink = OnceSink(target=self._target)

    # --- operators -----------------------------------------------------------------------------------------------

    def _apply_order(self, order: Transition) -> None:
        if not self.store.unreachable and self.engine.now >= self.read_only_until:
            self.apply_outcome(apply(self.store.snapshot, [order]))

    def _give_order(self, fault: Fault, make: Callable[[str, str, int], Transition]) -> None:
        leases, members = list(self.store.snapshot.leases), list(self.store.snapshot.members)
        if leases and members:
            p, to = leases[fault.pick % len(leases)], members[int(fault.choice * len(members))]
            self._record(fault, f"of partition {p} or {to}")
            self._apply_order(make(p, to, START_MS + round(self.engine.now * 1000)))

    def _timeout_ms(self) -> int:
        return round(1000 * self.plan.handover_timeout)

    def _transfer(self, fault: Fault) -> None:
        timeout_ms = self._timeout_ms()
        self._give_order(
            fault, lambda p, to, at: Transfer(by=OPERATOR, at_ms=at, partition=p, to=to, timeout_ms=timeout_ms)
        )

    def _pin(self, fault: Fault) -> None:
        timeout_ms = self._timeout_ms()
        self._give_order(
            fault, lambda p, to, at: PinTo(by=OPERATOR, at_ms=at, partition=p, to=to, timeout_ms=timeout_ms)
        )

    def _unpin(self, fault: Fault) -> None:
        pins = [*self.store.snapshot.ownership.pins]
        self._give_order(fault, lambda p, to, at: Unpin(by=OPERATOR, at_ms=at, partition=pins[0] if pins else p))

    def _drain(self, fault: Fault) -> None:
        self._give_order(fault, lambda p, to, at: Drain(by=OPERATOR, at_ms=at, member=to))

    def _undrain(self, fault: Fault) -> None:
        drained = [row.id for row in self.store.snapshot.members.values() if row.state is MemberState.LEAVING]
        self._give_order(fault, lambda p, to, at: Drain(by=OPERATOR, at_ms=at, member=(drained or [to])[0], undo=True))

    def _seek(self, fault: Fault) -> None:
        def seek(p: str, to: str, at: int) -> Transition:
            hub = self.hub.partitions[p]
            position = Position.before(hub.begin + int(fault.choice * (hub.end - hub.begin)))
            return Seek(by=OPERATOR, at_ms=at, partition=p, position=position, force=True)

        self._give_order(fault, seek)


def _make_sink(plan: QueryPlan, target: Target) -> Sink:
    match plan.sink:
        case "append":
            return Sink()
        case "numbered":
            return NumberedSink()
        case _:
            return OnceSink(target=target)


def play(plan: Plan) -> RunResult:
    return World(plan).run()
