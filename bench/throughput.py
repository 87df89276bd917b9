"""The source end to end: a backlog through Spark into a sink, with the emulator on the same cores, and Spark's ceiling.

| what | how it is measured |
|---|---|
| events/s | rows / Spark's reported time of their batches, planning and checkpoint included |
| CPU | of all descendants, by part of the system, from the query's start to its end; about 2 s of Python's are the |
| | start of the query and its planner, as with any Python source (see the ceiling) |
| memory | the largest peak of one Python worker so far, in this case or an earlier one |
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from bench.ceiling import ReadySource
from bench.common import Bar, Emulator, Log, Row, batches, emulator, start
from bench.processes import cpu_by_part, largest_worker

SUBJECT = "throughput"

#: Rows of a record batch in the ceiling's measurement: the source's maximum.
_ROWS = 10_000


class Case(NamedTuple):
    what: str
    size: int
    events: int
    partitions: int = 8
    sink: str = "noop"
    properties: bool = False
    bar: Bar | None = None


CASES = [
    Case("1 KB", 1024, 2_000_000, bar=Bar("least", 200_000)),
    Case("1 KB, 1 partition", 1024, 300_000, partitions=1),
    Case("1 KB, 32 partitions", 1024, 400_000, partitions=32),
    Case("100 B", 100, 500_000),
    Case("64 KB", 64 * 1024, 8_000),
    Case("1 KB, 2 properties", 1024, 300_000, properties=True),
    Case("1 KB into Delta", 1024, 300_000, sink="delta"),
]


class Flow(NamedTuple):
    """One run: events per second, µs of CPU per event by part of the system, and MB of the largest Python worker."""

    rate: float
    cpu: dict[str, float]
    memory: float


def measure(
    spark: SparkSession, folder: Path, log: Log, *, cases: Sequence[Case], runs: int, share: float = 1.0
) -> Iterator[Row]:
    """Measure each case in `runs` runs, with the fraction `share` of its events."""
    spark.dataSource.register(ReadySource)
    run_numbers = itertools.count()

    def flow(source: str, options: dict[str, str], sink: str, events: int) -> Flow:
        before = cpu_by_part()
        run_folder = folder / f"run-{next(run_numbers)}"
        query = start(spark, options, run_folder, source=source, sink=sink, available_now=True)
        query.awaitTermination()
        after = cpu_by_part()
        rows = sum(batch["numInputRows"] for batch in batches(query))
        if rows != events:
            raise RuntimeError(f"{rows} rows for {events} events")
        took = sum(batch["durationMs"]["triggerExecution"] for batch in batches(query)) / 1000
        spent = {part: (now - before.get(part, 0.0)) / rows * 1e6 for part, now in after.items()}
        return Flow(rows / took, spent, largest_worker())

    for case in cases:
        events = max(case.partitions * 100, int(case.events * share)) // case.partitions * case.partitions
        log(f"{case.what}: filling the emulator with {events:,} events")
        with emulator(case.partitions) as server:
            fill(server, case, events)
            options = {"connectionString": server.address, "startingPosition": "earliest"}
            most = max(100, min(_ROWS, (64 << 20) // case.size))
            ready = {"events": f"{events}", "size": f"{case.size}", "tasks": f"{case.partitions}", "rows": f"{most}"}
            ours, ceiling = list[Flow](), list[Flow]()
            # Run 0 of the first case warms up; Spark's workers go on running.
            for run in range(0 if case is cases[0] else 1, runs + 1):
                log(f"{case.what}: run {run} of {runs}")
                # Alternating, because the machine's speed changes meanwhile.
                one, other = flow("ehbalance", options, case.sink, events), flow("ready", ready, case.sink, events)
                if run:
                    ours.append(one)
                    ceiling.append(other)
        yield from _rows(case, ours, ceiling)


def fill(server: Emulator, case: Case, events: int) -> None:
    body, each = os.urandom(case.size), events // case.partitions
    properties = {"device": "thermometer-17", "unit": "°C"} if case.properties else None
    for partition in range(case.partitions):
        server.fill(partition, body, each, properties)


def _rows(case: Case, ours: list[Flow], ceiling: list[Flow]) -> Iterator[Row]:
    def row(what: str, unit: str, value: Callable[[Flow], float], bar: Bar | None = None) -> Row:
        compared = {"Spark's ceiling": tuple(map(value, ceiling))}
        return Row(SUBJECT, f"{case.what}{what}", unit, tuple(map(value, ours)), bar, compared)

    yield row("", "events/s", lambda flow: flow.rate, case.bar)
    for part in sorted(ours[0].cpu):
        yield row(f", {part}", "µs CPU", partial(_cpu, part))
    if ours[0].memory:
        yield Row(SUBJECT, f"{case.what}, the largest worker", "MB", tuple(flow.memory for flow in ours))


def _cpu(part: str, flow: Flow) -> float:
    return flow.cpu.get(part, 0.0)
