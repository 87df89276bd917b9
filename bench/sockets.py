"""A backlog with Spark's Unix socket between JVM and Python workers, compared with TCP on the loopback address.

A session decides it once, so that each way has a session of its own, in a process of its own; in turns.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from bench.common import Log, Row, batches, emulator, session, start
from spark_ehbalance.spark_versions import UNIX_SOCKET

SUBJECT = "sockets"

#: Events of a batch.
_PARTITIONS, _BATCH = 8, 100_000

_SPAWNED = multiprocessing.get_context("spawn")


def measure(folder: Path, log: Log, *, steps: int, runs: int) -> Iterator[Row]:
    """addBatch of a backlog of `steps` batches."""
    found: dict[str, list[float]] = {"true": [], "false": []}
    with emulator(_PARTITIONS) as server, ExitStack() as stack:
        for partition in range(_PARTITIONS):
            server.fill(partition, b"x" * 1024, steps * _BATCH // _PARTITIONS)
        processes = {way: stack.enter_context(ProcessPoolExecutor(1, _SPAWNED)) for way in found}
        for run in range(runs + 1):
            log(f"sockets: run {run} of {runs}")
            for way, process in processes.items():
                took = process.submit(_took, way, folder / f"socket-{way}", run, server.address).result()
                found[way] += [took] if run else []  # the first run warms up
    unix, tcp = map(tuple, found.values())
    yield Row(SUBJECT, f"batch of {_BATCH:,} events of 1 KB, Unix socket", "ms", unix, None, {"TCP": tcp})


def _took(way: str, folder: Path, run: int, address: str) -> float:
    """The median of addBatch in ms, in this process's session."""
    spark = SparkSession.getActiveSession() or session(folder, settings={UNIX_SOCKET: way})
    options = {"connectionString": address, "startingPosition": "earliest", "maxEventsPerTrigger": f"{_BATCH}"}
    query = start(spark, options, folder / f"{run}", available_now=True)
    query.awaitTermination()
    return statistics.median(each["durationMs"]["addBatch"] for each in batches(query))
