"""Measures how long a partition is not read while it moves: `python -m chaos.handover [--moves 20] [--only moves]`.

Real queries run under load with the source's default settings. The part `triggers` is `chaos.long_trigger`. The part
`moves` is here; with Spark's default trigger each batch starts after the last. It starts with planned moves, by a join
(a query starts), a drain (an operator's `Drain`, undone afterwards) and a leave (`spark_ehbalance.stop`), until
`--moves` partitions have moved: no event may be read twice or be missing. Then come the unplanned ends: `query.stop()`,
and SIGKILL of driver, JVM, planner and workers.

*Idle beyond the batch*, of a planned move = begin of the new owner's first batch with the partition - end of the old
owner's last one - time in between in which the new owner's query ran other batches. A batch begins when Spark calls the
sink.

*Read elsewhere after*, of an unplanned end = time from the signal or the call until another query has written a batch
with events of the partition, for the slowest partition. It includes up to two batches of the other query.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from chaos import long_trigger
from chaos.account import Account, Batch, Fault, account
from chaos.fleet import Fleet
from chaos.processes import QueryProcess
from chaos.results import finish, log, print_table
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.transitions import Drain
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.opening import open_store

PARTITIONS = 8
RATE = 200.0

#: The bars, in seconds.
MOST_IDLE = 1.0
MOST_AFTER_STOP = 5.0

LEASE_DURATION, BALANCE_INTERVAL = Options.lease_duration, Options.balance_interval

#: Seconds that the other query's batches may add on a busy machine.
_BATCH_ALLOWANCE = 2.0

_OPERATOR = Author("operator", "chaos")

#: Seconds within which the group must be balanced again: four times a lease and an interval, for a busy machine.
_SETTLE_TIMEOUT = 4 * (LEASE_DURATION + BALANCE_INTERVAL)


@dataclass
class Move:
    """A partition that one query read and then another. Times are in seconds."""

    how: str
    partition: str
    before: str
    after: str
    idle: float


@dataclass
class Outcome:
    """The results, in seconds."""

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

    def print(self) -> None:
        rows: list[Sequence[object]] = []
        for how in [*dict.fromkeys(move.how for move in self.moves), "all moves"]:
            idle = [move.idle for move in self.moves if how in (move.how, "all moves")]
            bar = f"{MOST_IDLE:g} s (median)" if how == "all moves" else ""
            median = f"{statistics.median(idle):.2f} s"
            rows.append((f"idle beyond the batch, {how}", len(idle), median, f"{max(idle):.2f} s", bar))
        killed = f"{LEASE_DURATION + BALANCE_INTERVAL:g} s + {_BATCH_ALLOWANCE:g} s"
        planned = self.account.duplicates - self.account.explained.total()
        rows += [
            ("query.stop(), read elsewhere after", 1, "", f"{self.stopped:.1f} s", f"{MOST_AFTER_STOP:g} s"),
            ("SIGKILL, read elsewhere after", 1, "", f"{self.killed:.1f} s", killed),
            ("events sent", self.account.sent, "", "", ""),
            ("missing", len(self.account.missing), "", "", "0"),
            ("read twice, planned moves", planned, "", "", "0"),
            ("read twice, query.stop() and SIGKILL", self.account.explained.total(), "", "", ""),
        ]
        title = f"handover, lease {LEASE_DURATION:g} s, interval {BALANCE_INTERVAL:g} s"
        print_table(("what", "count", "median", "longest", "bar"), rows, title)


class Measurement:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._processes: dict[str, QueryProcess] = {}
        self._acts: list[tuple[float, float, str]] = []  # begin, end, kind
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
        # The first batches of any Spark application are slow: c runs them before the measurement.
        self._start("c")
        self._settle("a", "b", "c")
        self._processes["c"].tell("stop")
        self._settle("a", "b")
        log("warmed up; measuring moves")
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
                log(f"  {how}: {len(outcome.moves)} moves so far")
        outcome.stopped = self._end("b", "a", lambda process: process.tell("cancel"))
        log(f"query.stop(): read elsewhere after {outcome.stopped:.1f} s")
        self._start("b")
        self._settle("a", "b")
        outcome.killed = self._end("b", "a", lambda process: process.kill())
        log(f"SIGKILL: read elsewhere after {outcome.killed:.1f} s")
        fleet.producer.stop()
        fleet.wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed(), "everything is read")
        outcome.moves = self._moves()
        outcome.account = account(fleet.sink.batches, fleet.producer.sent, self._faults)
        return outcome

    # --- actions ----------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._processes[name].tell("start", owner=f"{name}.1")

    def _drain(self, name: str, *, undo: bool = False) -> None:
        with open_store(str(self._fleet.table)) as store:
            drain = Drain(by=_OPERATOR, at_ms=time.time_ns() // 1_000_000, member=f"{name}.1", undo=undo)
            refused = commit(store, store.read(), [drain]).refused
        if refused:
            raise TimeoutError(f"the drain was refused: {refused[0].reason}")

    def _end(self, name: str, other: str, end: Callable[[QueryProcess], None]) -> float:
        """End a query. Returns the time until the other has written events of all its partitions."""
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

        self._fleet.wait_for(lambda: taken().keys() == owned, "the partitions are read elsewhere", _SETTLE_TIMEOUT)
        return max(taken().values()) - began

    def _settle(self, *names: str) -> None:
        """Wait until these queries share all partitions evenly and have written a batch of each."""
        fleet = self._fleet
        what = f"{', '.join(names)} share the partitions"
        fleet.wait_for(lambda: fleet.shared_by(*names) and fleet.read_by_owners(), what, _SETTLE_TIMEOUT)

    # --- results -----------------------------------------------------------------------------------------------

    def _moves(self) -> list[Move]:
        moves = []
        last: dict[str, Batch] = {}
        by_query: dict[str, list[Batch]] = defaultdict(list)
        for batch in sorted(self._fleet.sink.batches, key=lambda batch: batch.written):
            for partition in batch.epochs:
                before = last.get(partition)
                how = self._how(before.written, batch.written) if before and before.owner != batch.owner else None
                if before is not None and how is not None:
                    idle = idle_time(before.written, batch.began, by_query[batch.owner])
                    moves.append(Move(how, partition, before.owner, batch.owner, idle))
                last[partition] = batch
            by_query[batch.owner].append(batch)
        return moves

    def _how(self, left: float, taken: float) -> str | None:
        """The kind of the action during which a move happened; None for an unplanned move."""
        return next((how for began, ended, how in self._acts if began <= taken <= ended and left >= began - 10), None)


def idle_time(left: float, taken: float, batches: list[Batch]) -> float:
    """The time from `left`, the end of the old owner's last batch, to `taken`, the begin of the new owner's first one,
    without the time in which the new owner's query ran one of `batches`."""
    busy = sum(max(0.0, min(taken, batch.written) - max(left, batch.began)) for batch in batches)
    return max(0.0, taken - left - busy)


def main(
    moves: Annotated[int, typer.Option(help="Planned moves to measure, at least.")] = 20,
    trigger_seconds: Annotated[int, typer.Option(help="The long trigger.")] = 60,
    only: Annotated[Literal["moves", "triggers"] | None, typer.Option(help="One part; by default both.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new folder that keeps logs, rows and tables.")] = None,
) -> None:
    """Measure how long a partition is not read while it moves."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def measured(part: str, measure: Callable[[Fleet], Outcome | long_trigger.Outcome], **fleet: Any) -> bool:
        """Measure a part on its own fleet and print the results. Returns whether it passed."""
        try:
            with Fleet(PARTITIONS, RATE, {}, keep=keep and keep / part, **fleet) as running:
                outcome = measure(running)
        except TimeoutError as error:
            log(f"FAILED: {part}: {error}")
            return False
        outcome.print()
        log(f"{part}: {'OK' if outcome.passed else 'FAILED'}")
        if not outcome.passed:
            for line in [*outcome.account.unexplained[:20], *outcome.account.disorder[:20]]:
                log(line)
        return outcome.passed

    passed = []
    if only != "triggers":
        passed.append(measured("moves", lambda fleet: Measurement(fleet).run(moves)))
    if only != "moves":
        for part, seconds, listener in (
            ("triggers", trigger_seconds, True),
            ("triggers-without-listener", min(trigger_seconds, long_trigger.WITHOUT_LISTENER), False),
        ):
            measure = partial(long_trigger.measure, seconds=seconds, listener=listener)
            passed.append(measured(part, measure, trigger=f"{seconds} seconds", listener=listener))
    finish(all(passed))


if __name__ == "__main__":
    typer.run(main)
