"""Source end to end: a backlog through Spark into a sink, the emulator on the same cores; beside it Spark's ceiling.

| what | how it is measured |
|---|---|
| events/s | rows by the time that Spark reports for the batches that had them, planning and checkpoint included |
| CPU | of every process below this one, by part of the system, from the query's start to its end: of Python's about |
| | 2 s are not reading but starting a query and its planner, as with any Python source (see the ceiling) |
| memory | the most that one Python worker has held so far, in this case or in one before it |
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
from bench.common import Bar, Emulator, Row, Say, batches, emulator, start
from bench.processes import cpu_by_part, largest_worker

SUBJECT = "throughput"

#: Rows of the record batches that Spark is given in the ceiling's measurement: as many as the source gives at most.
_ROWS = 10_000


class Case(NamedTuple):
    """A backlog and where it goes."""

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
    """One run: events a second, µs of CPU an event by part of the system, and MB of the largest Python worker."""

    rate: float
    cpu: dict[str, float]
    memory: float


def measure(
    spark: SparkSession, folder: Path, say: Say, *, cases: Sequence[Case], runs: int, share: float = 1.0
) -> Iterator[Row]:
    """Every case in `runs` runs, with `share` of its events."""
    spark.dataSource.register(ReadySource)
    numbers = itertools.count()

    def flow(source: str, options: dict[str, str], sink: str, events: int) -> Flow:
        before = cpu_by_part()
        place = folder / f"run-{next(numbers)}"
        query = start(spark, options, place, source=source, sink=sink, available_now=True)
        query.awaitTermination()
        after = cpu_by_part()
        rows = sum(batch["numInputRows"] for batch in batches(query))
        if rows != events:
            raise RuntimeError(f"{rows} rows came of {events} events")
        took = sum(batch["durationMs"]["triggerExecution"] for batch in batches(query)) / 1000
        spent = {part: (now - before.get(part, 0.0)) / rows * 1e6 for part, now in after.items()}
        return Flow(rows / took, spent, largest_worker())

    for case in cases:
        events = max(case.partitions * 100, int(case.events * share)) // case.partitions * case.partitions
        say(f"{case.what}: filling the emulator with {events:,} events")
        with emulator(case.partitions) as server:
            fill(server, case, events)
            options = {"connectionString": server.address, "startingPosition": "earliest"}
            most = max(100, min(_ROWS, (64 << 20) // case.size))
            ready = {"events": f"{events}", "size": f"{case.size}", "tasks": f"{case.partitions}", "rows": f"{most}"}
            ours, ceiling = list[Flow](), list[Flow]()
            # The first run warms up; Spark's workers live on.
            for run in range(0 if case is cases[0] else 1, runs + 1):
                say(f"{case.what}: run {run} of {runs}")
                # In turn, because the machine's own speed changes meanwhile.
                one, other = flow("ehbalance", options, case.sink, events), flow("ready", ready, case.sink, events)
                if run:
                    ours.append(one)
                    ceiling.append(other)
        yield from _rows(case, ours, ceiling)


def fill(server: Emulator, case: Case, events: int) -> None:
    """Append the case's events, as many to each partition."""
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
