"""What tasks cost: a batch from many partitions with few events, in packed tasks and with a task for each partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from bench.common import HUB, Log, Row, batches, emulator, start

SUBJECT = "tasks"


def measure(spark: SparkSession, folder: Path, log: Log, *, partitions: int, runs: int) -> Iterator[Row]:
    """`addBatch` with many `partitions` that hold an event each."""
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
