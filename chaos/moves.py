"""Measures how long a partition is not read while it moves, with the source's default settings and under load.

Planned moves are caused by a join, a drain, the end of the drain, and a leave. No event may be missing or read twice.
*Idle beyond the batch* is the time from the end of the old owner's last batch with the partition to the begin of the
new owner's first one, minus the time in which the new owner ran other batches. Then follow `query.stop()`, and a
SIGKILL of the driver, JVM, planner and workers. *Read elsewhere after* is the time until another query has written
events from each of the partitions.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from chaos.account import Fault, WrittenBatch, account
from chaos.fleet import Fleet
from chaos.processes import QueryProcess
from chaos.results import RunOptions, log, print_table
from spark_ehbalance.group.changes import Drain
from spark_ehbalance.group.model import Author
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.query.options import Options

PARTITIONS, RATE = 8, 200.0

#: The limits in seconds. On a busy machine, the other query's batches can add two seconds.
MAX_IDLE, MAX_READ_AFTER_STOP = 1.0, 5.0
MAX_READ_AFTER_KILL = Options.lease_duration + Options.balance_interval + 2.0

#: Seconds within which the group must be balanced again: four times a lease and an interval, for a busy machine.
_SETTLE_TIMEOUT = 4 * (Options.lease_duration + Options.balance_interval)


class Measurement:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._processes = {name: fleet.launch(name) for name in "abc"}
        self._acts: list[tuple[float, float]] = []  # begin and end of each planned move

    def start(self, name: str) -> None:
        self._processes[name].command("start", owner=f"{name}.1")

    def warm_up(self) -> None:
        """Run all queries for a while, because the first batches of any Spark application are slow."""
        self.start("a")
        self.start("b")
        self._fleet.producer.start()
        self._settle("a", "b")
        self.start("c")
        self._settle("a", "b", "c")
        self._processes["c"].command("stop")
        self._settle("a", "b")

    def move(self, count: int) -> list[float]:
        """Make planned moves until there are at least `count`. Returns the idle seconds of each."""
        planned: list[tuple[Callable[[], None], tuple[str, ...]]] = [
            (lambda: self.start("c"), ("a", "b", "c")),
            (lambda: self._drain("a"), ("b", "c")),
            (lambda: self._drain("a", undo=True), ("a", "b", "c")),
            (lambda: self._processes["c"].command("stop"), ("a", "b")),
        ]
        while len(idle := idle_times(self._fleet.sink.batches, self._acts)) < count:
            for act, owners in planned:
                began = time.time()
                act()
                self._settle(*owners)
                self._acts.append((began, time.time()))
            log(f"  {len(idle_times(self._fleet.sink.batches, self._acts))} moves so far")
        return idle

    def end(self, name: str, end: Callable[[QueryProcess], None]) -> tuple[float, Fault]:
        """End a query with `end`. Returns the time until other queries have written events from all its partitions, and
        the fault."""
        owned = {lease.partition for lease in self._fleet.snapshot().owned_by(f"{name}.1")}
        began = time.time()
        end(self._processes[name])

        def first_writes() -> dict[str, float]:
            times: dict[str, float] = {}
            for batch in self._fleet.sink.batches:
                if batch.owner != f"{name}.1" and batch.written > began:
                    for partition in owned & batch.epochs.keys():
                        times.setdefault(partition, batch.written)
            return times

        self._fleet.wait_for(
            lambda: first_writes().keys() == owned, "the partitions are read elsewhere", _SETTLE_TIMEOUT
        )
        return max(first_writes().values()) - began, Fault("end of a query", name, began, began + 1.0)

    def restart(self, name: str) -> None:
        self.start(name)
        self._settle("a", "b")

    def _drain(self, name: str, *, undo: bool = False) -> None:
        operator = Author("operator", "chaos")
        with open_store(str(self._fleet.table)) as store:
            drain = Drain(by=operator, at_ms=time.time_ns() // 1_000_000, member=f"{name}.1", undo=undo)
            if refused := commit(store, store.read(), [drain]).rejected:
                raise TimeoutError(f"the drain was refused: {refused[0].reason}")

    def _settle(self, *names: str) -> None:
        """Wait until these queries share all partitions evenly and have written a batch from each partition."""
        fleet = self._fleet
        what = f"{', '.join(names)} share the partitions"
        fleet.wait_for(lambda: fleet.shared_by(*names) and fleet.read_by_owners(), what, _SETTLE_TIMEOUT)


def idle_times(batches: Sequence[WrittenBatch], acts: Sequence[tuple[float, float]]) -> list[float]:
    """The idle seconds of each partition that changed its owner during one of the `acts`."""
    found, last, by_owner = list[float](), dict[str, WrittenBatch](), defaultdict[str, list[WrittenBatch]](list)
    for batch in sorted(batches, key=lambda batch: batch.written):
        for partition in batch.epochs:
            before, last[partition] = last.get(partition), batch
            if before is None or before.owner == batch.owner:
                continue
            if any(began - 10 <= before.written and batch.written <= ended for began, ended in acts):
                found.append(idle_time(before.written, batch.began, by_owner[batch.owner]))
        by_owner[batch.owner].append(batch)
    return found


def idle_time(left: float, taken: float, others: Sequence[WrittenBatch]) -> float:
    """The time between two batches with a partition, without the time in which the new owner ran other batches."""
    busy = sum(max(0.0, min(taken, batch.written) - max(left, batch.began)) for batch in others)
    return max(0.0, taken - left - busy)


def run(run_options: RunOptions) -> bool:
    """Measure 20 planned moves, or 4 in the short form, and both unplanned ends of a query."""
    with Fleet(PARTITIONS, RATE, {}, keep=run_options.keep) as fleet:
        measurement = Measurement(fleet)
        measurement.warm_up()
        log("warmed up; measuring moves")
        idle = measurement.move(4 if run_options.short else 20)
        stopped, stop = measurement.end("b", lambda process: process.command("cancel"))
        measurement.restart("b")
        killed, kill = measurement.end("b", lambda process: process.kill())
        fleet.producer.stop()
        fleet.wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed(), "everything is read")
        found = account(fleet.sink.batches, fleet.producer.sent, [stop, kill])
    median, planned = statistics.median(idle), found.duplicates - found.explained.total()
    rows = [
        ("planned moves", len(idle), ""),
        ("idle beyond the batch, median", f"{median:.2f} s", f"{MAX_IDLE:g} s"),
        ("idle beyond the batch, longest", f"{max(idle):.2f} s", ""),
        ("query.stop(), read elsewhere after", f"{stopped:.1f} s", f"{MAX_READ_AFTER_STOP:g} s"),
        ("SIGKILL, read elsewhere after", f"{killed:.1f} s", f"{MAX_READ_AFTER_KILL:g} s"),
        ("events sent", found.sent, ""),
        ("missing", len(found.missing), "0"),
        ("read twice, planned moves", planned, "0"),
        ("read twice, query.stop() and SIGKILL", found.explained.total(), ""),
    ]
    print_table(("what", "value", "bar"), rows, "moves")
    for line in [*found.unexplained[:20], *found.disorder[:20]]:
        log(line)
    on_time = median <= MAX_IDLE and stopped <= MAX_READ_AFTER_STOP and killed <= MAX_READ_AFTER_KILL
    return found.passed and not planned and on_time
