"""How long a partition stands still when it moves: `python -m chaos.handover [--moves 20] [--only moves]`.

Real queries under load at the source's default settings. The part `triggers` is `chaos.long_trigger`; the part `moves`
is here, at Spark's default trigger, batch upon batch. First planned moves, in turn by a join (a query starts), a drain
(an operator's `Drain`, undone afterwards) and a leave (`spark_ehbalance.stop`), until so many partitions have been
moved and read elsewhere: nothing may be read twice or be missing. Then the unplanned ends: `query.stop()`, and SIGKILL
of driver, JVM, planner and workers.

*Idle beyond the batch in flight*, of a planned move: the time from the end of the old owner's last batch with the
partition until the new owner's planner takes it up, which is when Spark calls the sink for its first batch with it,
less the time that this planner's query was in a batch begun before, as it can take up nothing while one runs.

*Read elsewhere after*, of an end: the time from the signal or the call until another query has written a batch with
events of the partition; the longest of all partitions, so a batch of the other query is in it twice.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos import long_trigger
from chaos.account import Account, Batch, Fault, account
from chaos.fleet import Fleet, dump
from chaos.processes import QueryProcess
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.transitions import Drain
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.opening import open_store

PARTITIONS = 8
RATE = 200.0

#: Seconds that each may take at the most.
MOST_IDLE = 1.0
MOST_AFTER_STOP = 5.0

LEASE_DURATION, BALANCE_INTERVAL = Options.lease_duration, Options.balance_interval

#: Seconds for the batches of the other query until it has taken over and written, on a busy machine.
_BATCH_ALLOWANCE = 2.0

_OPERATOR = Author("operator", "chaos")

#: Seconds within which the group must be balanced again: a lease that expires, an interval, and thrice that for the
#: batches of a machine that is busy with something else.
_PATIENCE = 4 * (LEASE_DURATION + BALANCE_INTERVAL)


@dataclass
class Move:
    """A partition that was read by one query and then by another."""

    how: str
    partition: str
    before: str
    after: str
    idle: float
    in_all: float


@dataclass
class Outcome:
    """What was measured, in seconds."""

    moves: list[Move] = field(default_factory=list)
    stopped: float = 0.0
    killed: float = 0.0
    account: Account = field(default_factory=Account)

    @property
    def median(self) -> float:
        return statistics.median(move.idle for move in self.moves) if self.moves else float("inf")

    @property
    def passed(self) -> bool:
        return (
            self.account.passed
            and self.account.duplicates == self.account.explained.total()
            and self.median <= MOST_IDLE
            and self.stopped <= MOST_AFTER_STOP
            and self.killed <= LEASE_DURATION + BALANCE_INTERVAL + _BATCH_ALLOWANCE
        )

    def report(self) -> Table:
        """The table for people."""
        table = Table(
            title=f"handover, lease {LEASE_DURATION:g} s, interval {BALANCE_INTERVAL:g} s", title_justify="left"
        )
        for column in ("what", "count", "median", "longest", "bar"):
            table.add_column(column, justify="left" if column == "what" else "right")
        for how in dict.fromkeys(move.how for move in self.moves):
            idle = [move.idle for move in self.moves if move.how == how]
            table.add_row(
                f"idle beyond the batch, {how}",
                f"{len(idle)}",
                f"{statistics.median(idle):.2f} s",
                f"{max(idle):.2f} s",
            )
        idle = [move.idle for move in self.moves]
        in_all = [move.in_all for move in self.moves]
        table.add_row(
            "idle beyond the batch, all moves",
            f"{len(idle)}",
            f"{statistics.median(idle):.2f} s",
            f"{max(idle):.2f} s",
            f"{MOST_IDLE:g} s (median)",
        )
        table.add_row(
            "from batch to batch, all moves", "", f"{statistics.median(in_all):.2f} s", f"{max(in_all):.2f} s"
        )
        table.add_row("query.stop(), read elsewhere after", "1", "", f"{self.stopped:.1f} s", f"{MOST_AFTER_STOP:g} s")
        killed = LEASE_DURATION + BALANCE_INTERVAL
        bar = f"{killed:g} s + {_BATCH_ALLOWANCE:g} s"
        table.add_row("SIGKILL, read elsewhere after", "1", "", f"{self.killed:.1f} s", bar)
        table.add_row("events sent", f"{self.account.sent:,}")
        table.add_row("missing", f"{len(self.account.missing):,}", "", "", "0")
        planned = self.account.duplicates - self.account.explained.total()
        table.add_row("read twice, planned moves", f"{planned:,}", "", "", "0")
        table.add_row("read twice, query.stop() and SIGKILL", f"{self.account.explained.total():,}")
        return table


class Measurement:
    """One run on a fleet."""

    def __init__(self, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._fleet, self._say = fleet, say
        self._processes: dict[str, QueryProcess] = {}
        self._acts: list[tuple[float, float, str]] = []  # from, until, how
        self._faults: list[Fault] = []

    def run(self, moves: int) -> Outcome:
        """Measure everything. Raises `TimeoutError` if the group does not become balanced."""
        fleet, outcome = self._fleet, Outcome()
        for name in "abc":
            self._processes[name] = fleet.launch(name)
        for name in "ab":
            self._start(name)
        fleet.producer.start()
        self._settle("a", "b")
        # The first batches of a Spark application are slow whatever the source: c has them behind it when it counts.
        self._start("c")
        self._settle("a", "b", "c")
        self._processes["c"].tell("stop")
        self._settle("a", "b")
        self._say("warmed up; now the moves")
        planned: list[tuple[str, Callable[[], None], tuple[str, ...]]] = [
            ("join", lambda: self._start("c"), ("a", "b", "c")),
            ("drain", lambda: self._drain("a"), ("b", "c")),
            ("end of the drain", lambda: self._drain("a", undo=True), ("a", "b", "c")),
            ("leave", lambda: self._processes["c"].tell("stop"), ("a", "b")),
        ]
        while len(outcome.moves) < moves:
            for how, act, owners in planned:
                began = time.time()
                act()
                self._settle(*owners)
                self._acts.append((began, time.time(), how))
                outcome.moves = self._moves()
                self._say(f"  {how}: {len(outcome.moves)} moves so far")
        outcome.stopped = self._end("b", "a", lambda process: process.tell("cancel"))
        self._say(f"query.stop(): read elsewhere after {outcome.stopped:.1f} s")
        self._start("b")
        self._settle("a", "b")
        outcome.killed = self._end("b", "a", lambda process: process.kill())
        self._say(f"SIGKILL: read elsewhere after {outcome.killed:.1f} s")
        fleet.producer.stop()
        fleet.wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed(), "everything is read")
        outcome.moves = self._moves()
        outcome.account = account(fleet.sink.batches, fleet.producer.sent, self._faults)
        return outcome

    # --- what is done ------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._processes[name].tell("start", owner=f"{name}.1")

    def _drain(self, name: str, *, undo: bool = False) -> None:
        with open_store(str(self._fleet.table)) as store:
            drain = Drain(by=_OPERATOR, at_ms=time.time_ns() // 1_000_000, member=f"{name}.1", undo=undo)
            refused = commit(store, store.read(), [drain]).refused
        if refused:
            raise TimeoutError(f"the drain was refused: {refused[0].reason}")

    def _end(self, name: str, other: str, end: Callable[[QueryProcess], None]) -> float:
        """End a query; the time until the other has written events of all partitions that it had."""
        owned = {lease.partition for lease in self._fleet.snapshot().owned_by(f"{name}.1")}
        began = time.time()
        end(self._processes[name])
        self._faults.append(Fault("end of a query", name, began, began + 1.0))

        def taken() -> dict[str, float]:
            times: dict[str, float] = {}
            for batch in self._fleet.sink.batches:
                if batch.owner == f"{other}.1" and batch.written > began:
                    for partition in owned & batch.epochs.keys():
                        times.setdefault(partition, batch.written)
            return times

        self._fleet.wait_for(lambda: taken().keys() == owned, "the partitions are read elsewhere", _PATIENCE)
        return max(taken().values()) - began

    def _settle(self, *names: str) -> None:
        """Wait until these own all partitions, as evenly as can be, and have written something of each."""
        fleet = self._fleet
        what = f"{', '.join(names)} share the partitions"
        fleet.wait_for(lambda: fleet.shared_by(*names) and fleet.read_by_owners(), what, _PATIENCE)

    # --- what came of it ---------------------------------------------------------------------------------------

    def _moves(self) -> list[Move]:
        """The planned moves so far."""
        moves = []
        last: dict[str, Batch] = {}
        by_query: dict[str, list[Batch]] = defaultdict(list)
        for batch in sorted(self._fleet.sink.batches, key=lambda batch: batch.written):
            for partition in batch.epochs:
                before = last.get(partition)
                how = self._how(before.written, batch.written) if before and before.owner != batch.owner else None
                if before is not None and how is not None:
                    idle = idle_time(before.written, batch.began, by_query[batch.owner])
                    in_all = batch.written - before.written
                    moves.append(Move(how, partition, before.owner, batch.owner, idle, in_all))
                last[partition] = batch
            by_query[batch.owner].append(batch)
        return moves

    def _how(self, left: float, taken: float) -> str | None:
        """The act in whose time a move lies; None for a move that nobody has planned."""
        return next((how for began, ended, how in self._acts if began <= taken <= ended and left >= began - 10), None)


def idle_time(left: float, taken: float, batches: list[Batch]) -> float:
    """From `left`, when the old owner had written its last batch, to `taken`, when the new owner's first one began,
    less the time in which the new owner's query was at one of `batches`."""
    busy = sum(max(0.0, min(taken, batch.written) - max(left, batch.began)) for batch in batches)
    return max(0.0, taken - left - busy)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.handover", description="How long a partition stands still.")
    parser.add_argument("--moves", type=int, default=20, help="at least so many planned moves (default: 20)")
    parser.add_argument("--trigger-seconds", type=int, default=60, help="the long trigger (default: 60)")
    parser.add_argument("--only", choices=("moves", "triggers"), help="one part (default: both)")
    parser.add_argument("--keep", type=Path, help="a new folder to leave everything in: logs, rows, tables")
    parser.add_argument("--json", action="store_true", help="the outcome for programs, on standard output")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    def measured(part: str, measure: Callable[[Fleet], Outcome | long_trigger.Outcome], **fleet: Any) -> bool:
        """Measure a part on a fleet of its own, and print what came of it; whether it has passed."""
        keep = options.keep and options.keep / part
        try:
            with Fleet(PARTITIONS, RATE, {}, keep=keep, **fleet) as running:
                outcome = measure(running)
        except TimeoutError as error:
            say(f"FAILED: {part}: {error}")
            return False
        console.print(outcome.report())
        say(f"{part}: {'OK' if outcome.passed else 'FAILED'}")
        if not outcome.passed:
            for line in [*outcome.account.unexplained[:20], *outcome.account.disorder[:20]]:
                say(line)
        outcomes[part] = asdict(replace(outcome, account=Account())) | {
            "account": outcome.account.to_dict(),
            "passed": outcome.passed,
        }
        return outcome.passed

    outcomes: dict[str, Any] = {}
    passed = []
    if options.only != "triggers":
        passed.append(measured("moves", lambda fleet: Measurement(fleet, say).run(options.moves)))
    if options.only != "moves":
        for part, seconds, listener in (
            ("triggers", options.trigger_seconds, True),
            ("triggers-without-listener", min(options.trigger_seconds, long_trigger.WITHOUT_LISTENER), False),
        ):
            measure = partial(long_trigger.measure, seconds=seconds, listener=listener, say=say)
            passed.append(measured(part, measure, trigger=f"{seconds} seconds", listener=listener))
    if options.json:
        print(dump(outcomes | {"passed": all(passed)}))
    say("OK" if all(passed) else "FAILED")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
