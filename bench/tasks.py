"""What tasks cost: a batch from many partitions with few events, in packed tasks and with a task for each partition;
and a batch whose receivers are closed after their task, without owner level, compared with one that keeps them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from bench.common import HUB, Log, Row, batches, emulator, start
from bench.processes import workers_cpu

SUBJECT = "tasks"

#: Partitions of the queries whose receivers are closed or kept.
_FEW = 8


def measure(spark: SparkSession, folder: Path, log: Log, *, partitions: int, count: int, runs: int) -> Iterator[Row]:
    """`addBatch` with many `partitions` that hold an event each; and, with a few, of `count` batches in a row."""
    yield from _packed(spark, folder, log, partitions, runs)
    yield from _kept(spark, folder, log, count, runs)


def _packed(spark: SparkSession, folder: Path, log: Log, partitions: int, runs: int) -> Iterator[Row]:
    times: dict[str, list[float]] = {"packed": [], "a task each": []}
    with emulator(partitions) as server:
        for run in range(runs + 1):
            log(f"{partitions} partitions: run {run} of {runs}")
            for partition in range(partitions):
                server.control.append(HUB, partition, [b"x" * 1000])
            for how, found in times.items():
                options = {"connectionString": server.address, "startingPosition": "earliest"}
                if how == "a task each":
                    options["minPartitions"] = str(partitions)
                query = start(spark, options, folder / how, available_now=True)
                query.awaitTermination()
                found += [batch["durationMs"]["addBatch"] for batch in batches(query)]
    packed, each = (tuple(found[1:]) for found in times.values())
    yield Row(SUBJECT, f"{partitions} partitions with an event each, packed", "ms", packed, None, {"a task each": each})


def _kept(spark: SparkSession, folder: Path, log: Log, count: int, runs: int) -> Iterator[Row]:
    times: dict[str, list[float]] = {"closed": [], "kept": []}
    spent: dict[str, list[float]] = {"closed": [], "kept": []}
    with emulator(_FEW) as server:
        for how in times:  # a reader without level is refused beside one with a level
            server.control.add_consumer_group(HUB, how)
        for partition in range(_FEW):
            server.fill(partition, b"x" * 1000, count)
        for run in range(runs + 1):
            for how in times:
                log(f"receivers {how}: run {run} of {runs}")
                options = {"connectionString": server.address, "startingPosition": "earliest", "consumerGroup": how}
                options |= {"maxEventsPerTrigger": str(_FEW)} | ({"ownerLevel": "1"} if how == "kept" else {})
                before = workers_cpu()
                query = start(spark, options, folder / f"{how}-{run}", available_now=True)
                query.awaitTermination()
                took = [batch["durationMs"]["addBatch"] for batch in batches(query)]
                times[how].append(statistics.median(took))
                spent[how].append((workers_cpu() - before) / len(took) * 1e3)
    what = f"{_FEW} partitions with an event each, receivers closed after it"
    for name, unit, found in (("batch", "ms", times), ("CPU of the workers a batch", "ms", spent)):
        closed, kept = (tuple(each[1:]) for each in found.values())
        yield Row(SUBJECT, f"{what}: {name}", unit, closed, None, {"kept": kept})
