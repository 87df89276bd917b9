"""Queries under faults. They share a hub under load, while a schedule drawn from the seed kills, pauses, stops and
starts them, disturbs their connections, makes the lease table unreachable, and adds partitions.

How each process reads is also drawn from the seed: with or without Spark's Unix socket, and all columns or only four.
At the end, the queries read the rest, and every event is accounted for. In the files to which the queries append, no
event may be missing, and an event that was read twice must be in a batch that a fault interrupted between its planning
and its checkpoint. The Delta table to which all queries write the same batches with `write_once` must contain every
event exactly once. The second hub, to which the queries of `copy` also write, must contain all events, and the events
of each key in order.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chaos import faults
from chaos.account import Account, Fault, TargetAccount, account, account_target
from chaos.faults import KINDS, QUERY_FAULTS, SINK_STEPS, Step, schedule
from chaos.fleet import COPY, HUB, START_TIMEOUT, Fleet
from chaos.hubs import copy_differences, read_hub
from chaos.outage import Outage
from chaos.processes import QueryProcess, send
from chaos.results import RunOptions, log, print_table
from spark_ehbalance.errors import StoreError

LEASE_DURATION = 6.0
PARTITIONS = 8
RATE = 200.0

#: Number of queries at the beginning, and the maximum number.
_QUERIES, _MAX_QUERIES = 3, 4

#: Maximum seconds that a graceful stop of a query takes.
_STOP_TIMEOUT = 90.0

#: Seconds between two lines of progress.
_PROGRESS = 10.0

#: Seconds within which a query must reach the step of its sink at which a fault is injected.
_STEP_TIMEOUT = 30.0


@dataclass
class Query:
    name: str
    process: QueryProcess
    generation: int = 1
    running: bool = False  # its process has reported that the query is running
    busy: bool = False  # a fault of this query is in progress
    halted: bool = False  # it is waiting for a fault at a step of its sink
    late: bool = False  # it was paused within a transaction

    @property
    def owner(self) -> str:
        return f"{self.name}.{self.generation}"


class Chaos:
    def __init__(self, fleet: Fleet, steps: list[Step]) -> None:
        self._fleet, self._steps = fleet, steps
        self._outage = Outage(fleet.table)
        self._queries: list[Query] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.faults: list[Fault] = []
        self.injected: Counter[str] = Counter()
        self.skipped = 0
        self.failures: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()  # of transactions on the exactly-once target
        self._names = iter("abcdefgh")

    def run(self) -> None:
        """Start the queries, inject all faults, and read the rest. Raises `TimeoutError` if a step takes too long."""
        for _ in range(_QUERIES):
            self._new_query()
        self._fleet.wait_for(lambda: self._are_running(_QUERIES), "the queries run")
        self._fleet.producer.start()
        self._fleet.wait_for(lambda: len({batch.owner for batch in self._fleet.sink.batches}) == _QUERIES, "all read")
        log("all queries read; injecting faults")
        began = time.monotonic()
        for step in self._steps:
            self._at(began + step.at, partial(self._inject, step))
        logged_at = 0.0
        while self._due:
            at, _, action = self._due[0]
            if time.monotonic() >= at:
                heapq.heappop(self._due)
                action()
            self._watch()
            if time.monotonic() - logged_at > _PROGRESS:
                logged_at = time.monotonic()
                read = sum(map(len, self._fleet.sink.read.values()))
                log(f"{logged_at - began:.0f} s: sent {self._fleet.producer.count:,}, read {read:,}, {self._state()}")
            time.sleep(0.05)
        self._drain()

    # --- faults ------------------------------------------------------------------------------------------------

    def _inject(self, step: Step) -> None:
        victim = None
        if step.kind in QUERY_FAULTS:
            candidates = [query for query in self._queries if query.running and not query.busy]
            if len(candidates) < 2:  # at least one query must continue to read
                self.skipped += 1
                return
            victim = candidates[int(step.victim * len(candidates))]
        elif (step.kind == faults.NEW and len(self._queries) == _MAX_QUERIES) or (
            step.kind == faults.OUTAGE and self._outage.active
        ):
            self.skipped += 1
            return
        log(f"  {step.kind}{f' {victim.name}' if victim else ''}")
        self.injected[step.kind] += 1
        if victim is not None and step.kind in SINK_STEPS:
            self._wait_for_step(step, victim)
        elif victim is not None:
            self._hit_query(step, victim)
        else:
            self._hit_all(step)

    def _wait_for_step(self, step: Step, victim: Query) -> None:
        victim.process.command("halt", step=SINK_STEPS[step.kind])
        victim.busy, victim.halted = True, False
        deadline = time.monotonic() + _STEP_TIMEOUT

        def halted() -> None:
            if victim.halted:
                victim.busy = False
                self._hit_query(step, victim)
            elif victim.running and time.monotonic() < deadline:
                self._after(0.05, halted)
            else:
                log(f"  {victim.name} did not reach the step {SINK_STEPS[step.kind]!r}")
                victim.process.command("go")
                victim.busy = False
                self.injected[step.kind] -= 1
                self.skipped += 1

        halted()

    def _hit_query(self, step: Step, victim: Query) -> None:
        now, kind, process = time.time(), step.kind, victim.process
        if kind in (faults.KILL_QUERY, faults.KILL_WRITTEN):
            process.kill()
            self.faults.append(Fault(kind, victim.name, now, time.time()))
            victim.running, victim.busy = False, True
            self._after(step.seconds, lambda: self._relaunch(victim, step.fresh))
        elif kind in (faults.KILL_PLANNER, faults.KILL_WORKER):
            pids = process.planner() if kind == faults.KILL_PLANNER else process.workers()
            send(pids, signal.SIGKILL)
            self.faults.append(Fault(kind, victim.name, now, time.time()))
        elif kind in faults.PAUSES:
            pids = process.planner() if kind == faults.PAUSE_PLANNER else [member.pid for member in process.tree()]
            send(pids, signal.SIGSTOP)
            victim.busy, victim.late = True, kind in SINK_STEPS
            process.command("go")

            def resume() -> None:
                send(pids, signal.SIGCONT)
                victim.busy = False
                self.faults.append(Fault(kind, victim.name, now, time.time()))

            self._after(step.seconds, resume)
        else:
            process.command("stop" if kind == faults.STOP else "cancel")
            victim.busy = True
            deadline = time.monotonic() + _STOP_TIMEOUT

            def stopped() -> None:
                if victim.running and time.monotonic() < deadline:
                    self._after(0.2, stopped)
                    return
                if kind == faults.CANCEL:  # a graceful stop must not cause duplicates, so it explains none
                    self.faults.append(Fault(kind, victim.name, now, time.time()))
                self._after(step.seconds, lambda: self._start_again(victim, step.fresh))

            stopped()

    def _hit_all(self, step: Step) -> None:
        emulator, producer, now = self._fleet.emulator, self._fleet.producer, time.time()
        match step.kind:
            case faults.NEW:
                self._new_query()
            case faults.DROP:
                emulator.drop_connections()
            case faults.BUSY:
                emulator.server_busy(seconds=step.seconds)
            case faults.DETACH:
                emulator.detach(HUB)
            case faults.ADD:
                emulator.add_partitions(HUB, 1)
                producer.add_partitions(1)
            case faults.OUTAGE:
                self._outage.begin()

                def end_outage() -> None:
                    self._outage.end()
                    self.faults.append(Fault(step.kind, None, now, time.time()))

                self._after(step.seconds, end_outage)

    # --- queries -----------------------------------------------------------------------------------------------

    def _new_query(self) -> None:
        name = next(self._names)
        query = Query(name, self._launch(name))
        self._queries.append(query)
        query.process.command("start", owner=query.owner)

    def _launch(self, name: str) -> QueryProcess:
        return self._fleet.launch(name)

    def _relaunch(self, query: Query, fresh: bool) -> None:
        query.process = self._launch(query.name)
        self._start_again(query, fresh)

    def _start_again(self, query: Query, fresh: bool) -> None:
        query.generation += fresh
        self.injected[faults.NEW if fresh else faults.RESTART] += 1
        query.process.command("start", owner=query.owner)
        query.busy = query.late = False

    def _watch(self) -> None:
        """Process everything that the queries have reported and written since the last call."""
        self._fleet.sink.poll()
        for query in self._queries:
            for event in query.process.new_events():
                match event["event"]:
                    case "starting":
                        query.running = True
                    case "stopped":
                        query.running = False
                    case "halted":
                        query.halted = True
                    case "committed" | "refused" as outcome:
                        self._record(outcome, query, event["why"])
                    case "failed":
                        query.running = False
                        self.failures[event["why"]] += 1
                        self.faults.append(Fault("query failed", query.name, event["at"] - 1, event["at"]))
                        log(f"  query {query.name} failed: {event['why'][:200]}")

    def _record(self, outcome: str, query: Query, why: str | None) -> None:
        if why:
            self.outcomes[f"refused: {why}"] += 1
        if query.late:
            query.late = False
            self.outcomes[f"of those paused before their commit: {outcome}"] += 1

    def _are_running(self, count: int) -> bool:
        self._watch()
        return sum(query.running for query in self._queries) == count

    def _state(self) -> str:
        try:
            leases = self._fleet.snapshot().leases.values()
        except StoreError:
            return "the lease table is unreachable"
        owned = Counter(lease.owner or "nobody" for lease in leases)
        return ", ".join(f"{owner} {count}" for owner, count in sorted(owned.items()))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._at(time.monotonic() + seconds, action)

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), action))

    def _drain(self) -> None:
        """Inject no more faults, wait until everything is read, and then stop all queries gracefully."""
        fleet = self._fleet
        log("no more faults; reading the rest")
        fleet.producer.stop()

        def read() -> bool:
            self._watch()
            return fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed()

        try:
            fleet.wait_for(read, "everything is read", START_TIMEOUT)
            for query in self._queries:
                query.process.command("stop")
            fleet.wait_for(lambda: self._are_running(0), "all queries have stopped", _STOP_TIMEOUT)
            fleet.wait_for(lambda: not self._owned(), "all leases are released", 10.0)
        finally:
            log("accounting")
            fleet.sink.poll()

    def _owned(self) -> list[str]:
        return [partition for partition, lease in self._fleet.snapshot().leases.items() if lease.owner is not None]


def report(chaos: Chaos, result: Account, target: TargetAccount | None) -> list[tuple[str, str]]:
    rows = [(f"fault: {kind}", chaos.injected[kind]) for kind in (*KINDS, faults.RESTART)]
    rows.append(("fault: skipped, no target", chaos.skipped))
    rows += [(f"query failed: {why[:90]}", count) for why, count in chaos.failures.most_common()]
    rows.append(("events sent", result.sent))
    if target is not None:
        rows += [
            ("exactly-once target: rows", target.rows),
            ("exactly-once target: missing", len(target.missing)),
            ("exactly-once target: twice or more", len(target.duplicates)),
            ("exactly-once target: no event of the hub", target.foreign),
            *((f"  {outcome}", count) for outcome, count in sorted(chaos.outcomes.items())),
        ]
    rows += [
        ("plain append: rows read", result.read),
        ("plain append: missing", len(result.missing)),
        ("plain append: no event of the hub", result.foreign),
        ("plain append: twice or more", result.duplicates),
        *((f"  because of: {kind}", count) for kind, count in result.explained.most_common()),
        ("  unexplained", result.duplicates - result.explained.total()),
        ("out of order within a tenure", len(result.disorder)),
    ]
    return [(what, f"{count:,}") for what, count in rows]


def run_faults(run_options: RunOptions, *, exactly_once: bool, tokens: bool = False, copy: bool = False) -> bool:
    """Run the schedule of the seed, and print the account. Returns whether the run passed."""
    # On a busy machine, a query's first batch can take half a minute; the query must keep its partitions meanwhile.
    lease = {"leaseDuration": f"{LEASE_DURATION:g} s", "balanceInterval": "2 s", "handoverTimeout": "60 s"}
    excluded = {*(() if exactly_once else SINK_STEPS), *([faults.ADD] if copy else ())}  # a new partition moves keys
    kinds = [kind for kind in KINDS if kind not in excluded]
    problem, wrong = "", list[str]()
    more = {"exactly_once": exactly_once, "tokens": tokens, "copy": copy, "seed": run_options.seed}
    with Fleet(PARTITIONS, RATE, lease, "500 milliseconds", run_options.keep, **more) as fleet:  # type: ignore[arg-type]
        chaos = Chaos(fleet, schedule(run_options.seed, run_options.minutes * 60, LEASE_DURATION, kinds))
        try:
            chaos.run()
        except TimeoutError as error:
            problem = str(error)
        result = account(fleet.sink.batches, fleet.producer.sent, chaos.faults)
        target = account_target(fleet.target_rows(), fleet.producer.sent) if exactly_once else None
        rows = [*report(chaos, result, target), ("ended in time", problem or "yes")]
        if copy:
            repeated, wrong = copy_differences(fleet.producer.by_key(), read_hub(fleet.emulator, COPY))
            rows += [("copy: repeated", f"{repeated:,}"), ("copy: keys with something wrong", f"{len(wrong):,}")]
    print_table(("what", "count"), rows, f"seed {run_options.seed}, {run_options.minutes:g} minutes")
    for line in [*(f"unexplained: {line}" for line in result.unexplained[:20]), *result.disorder[:20], *wrong[:20]]:
        log(line)
    if result.missing:
        log(f"missing: {result.missing[:20]}")
    if target is not None:
        for what, events in (("missing in", target.missing), ("more than once in", target.duplicates)):
            if events:
                log(f"{what} the exactly-once target: {events[:20]}")
        log(
            f"exactly-once target: {len(target.missing)} missing, {len(target.duplicates)} duplicates of "
            f"{result.sent:,} events; plain append: {result.duplicates:,} duplicates"
            + ("" if result.duplicates else ", so that this run proves nothing about exactly once")
        )
    return result.passed and not problem and not wrong and (target is None or target.passed)


def faults_scenario(run_options: RunOptions) -> bool:
    """Inject all faults. The queries also write exactly once, unless the run is plain."""
    return run_faults(run_options, exactly_once=not run_options.plain)


def tokens(run_options: RunOptions) -> bool:
    """Inject faults into plain queries that connect over TLS, with tokens that expire after 20 s."""
    return run_faults(run_options, exactly_once=False, tokens=True)


def copy(run_options: RunOptions) -> bool:
    """Inject faults into plain queries that also write to a second hub."""
    return run_faults(run_options, exactly_once=False, copy=True)
