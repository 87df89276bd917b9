"""What tasks cost, in turns in one session.

| what | how it is measured |
|---|---|
| packed | Spark's reported addBatch of a batch from many partitions with an event each |
| in two tasks | addBatch and CPU a row of a backlog in batches of 250,000, with as many tasks as `parallelism` says |
| gcFreeze | Python's CPU of the same backlog in eight tasks a batch, by tasks; in new workers, which stay frozen |
| memory | the largest peak of a worker after many tasks with a few events each, in new workers |

CPU is counted from the end of the first batch on: before, the query starts and workers import their modules.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from bench.common import HUB, Emulator, Log, Row, batches, emulator, start
from bench.latency import wait_for
from bench.processes import cpu_by_part, end_workers, largest_worker

SUBJECT = "tasks"

PARTITIONS = 8

#: Events of a backlog's batch, and of a small task.
_BATCH, _SMALL = 250_000, 10


class Flow(NamedTuple):
    """One run: the median of addBatch in ms, and µs of CPU per event by part of the system."""

    took: float
    cpu: dict[str, float]


def measure(
    spark: SparkSession, folder: Path, log: Log, *, partitions: int, runs: int, share: float = 1.0, small: int
) -> Iterator[Row]:
    """`addBatch` with many `partitions` that hold an event each; a backlog with the fraction `share` of 2,000,000
    events, in eight batches; and `small` tasks in workers of their own."""
    yield from _packed(spark, folder, log, partitions, runs)
    yield from _backlog(spark, folder, log, int(_BATCH * share), runs)
    yield from _memory(spark, folder, log, small)


def _packed(spark: SparkSession, folder: Path, log: Log, partitions: int, runs: int) -> Iterator[Row]:
    times: dict[str, list[float]] = {"packed": [], "a task each": []}
    with emulator(partitions) as server:
        for run in range(runs + 1):
            log(f"{partitions} partitions: run {run} of {runs}")
            for partition in range(partitions):
                server.control.append(HUB, partition, [b"x" * 1000])
            for how, found in times.items():
                options = _from_the_start(server)
                if how == "a task each":
                    options["minPartitions"] = str(partitions)
                query = start(spark, options, folder / how, available_now=True)
                query.awaitTermination()
                found += [batch["durationMs"]["addBatch"] for batch in batches(query)]
    packed, each = (tuple(found[1:]) for found in times.values())
    yield Row(SUBJECT, f"{partitions} partitions with an event each, packed", "ms", packed, None, {"a task each": each})


def _backlog(spark: SparkSession, folder: Path, log: Log, batch: int, runs: int) -> Iterator[Row]:
    """In two tasks a batch and in eight; and in eight with `gcFreeze` and without."""
    two, eight, frozen, thawed = "two tasks", "eight tasks", "gcFreeze", "without gcFreeze"
    ways = {two: {"parallelism": "2"}, eight: {"parallelism": "8"}}
    ways |= {frozen: {"parallelism": "8"}, thawed: {"parallelism": "8", "gcFreeze": "false"}}
    found: dict[str, list[Flow]] = {way: [] for way in ways}
    numbers = itertools.count()

    def flow(options: Mapping[str, str]) -> Flow:
        run_folder = folder / f"backlog-{next(numbers)}"
        query = start(spark, {**options, "maxEventsPerTrigger": str(batch)}, run_folder, available_now=True)
        first = sum(each["numInputRows"] for each in wait_for(query, 1))
        before = cpu_by_part()
        query.awaitTermination()
        rows = sum(each["numInputRows"] for each in batches(query)) - first
        spent = {part: (now - before.get(part, 0.0)) / rows * 1e6 for part, now in cpu_by_part().items()}
        return Flow(statistics.median(each["durationMs"]["addBatch"] for each in batches(query)[1:]), spent)

    with emulator(PARTITIONS) as server:
        log(f"backlog: filling the emulator with {8 * batch:,} events")
        for partition in range(PARTITIONS):
            server.fill(partition, b"x" * 1024, 8 * batch // PARTITIONS)
        for run in range(runs + 1):
            log(f"backlog: run {run} of {runs}")
            for way, options in ways.items():
                if way in (frozen, thawed):
                    end_workers()
                each = flow(_from_the_start(server) | options)
                found[way] += [each] if run else []  # the first run warms up

    what = f"batch of {batch:,} from {PARTITIONS} partitions, in two tasks"
    took = {way: tuple(each.took for each in flows) for way, flows in found.items()}
    yield Row(SUBJECT, what, "ms", took[two], None, {eight: took[eight]})
    cpu = {
        way: {part: tuple(each.cpu.get(part, 0.0) for each in flows) for part in ("JVM", "Python")}
        for way, flows in found.items()
    }
    for part in ("JVM", "Python"):
        few, many = cpu[two][part], cpu[eight][part]
        yield Row(SUBJECT, f"{what}, {part}", "µs CPU", few, None, {eight: many})
        more = tuple((m - f) * batch / (8 - 2) / 1000 for f, m in zip(few, many, strict=True))
        yield Row(SUBJECT, f"a task more for the same events, {part}", "ms CPU", more)
    each = {way: tuple(value * batch / 8 / 1000 for value in cpu[way]["Python"]) for way in (frozen, thawed)}
    yield Row(SUBJECT, f"task of {batch // 8:,} events, Python", "ms CPU", each[frozen], None, {thawed: each[thawed]})


def _memory(spark: SparkSession, folder: Path, log: Log, tasks: int) -> Iterator[Row]:
    peaks = list[float]()
    with emulator(PARTITIONS) as server:
        for partition in range(PARTITIONS):
            server.fill(partition, b"x" * 1000, tasks * _SMALL // PARTITIONS)
        for freeze in ("true", "false"):
            log(f"memory: {tasks} tasks, gcFreeze {freeze}")
            end_workers()
            options = {"gcFreeze": freeze, "minPartitions": str(tasks)}
            query = start(spark, _from_the_start(server) | options, folder / f"memory-{freeze}", available_now=True)
            query.awaitTermination()
            peaks.append(largest_worker())
    what = f"the larger of two workers after {tasks:,} tasks"
    yield Row(SUBJECT, what, "MB", (peaks[0],), None, {"without gcFreeze": (peaks[1],)})


def _from_the_start(server: Emulator) -> dict[str, str]:
    return {"connectionString": server.address, "startingPosition": "earliest"}
