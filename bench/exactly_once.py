"""`write_once` beside Delta's plain and its idempotent append: the same frame, in turns, in one `foreachBatch`.

In a young table and in one with a long history; in a table of its own, and in one that others write in between: then
Delta has to compute its state anew for whatever asks for it.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from bench.common import HUB, Bar, Log, Row, emulator
from spark_ehbalance.delta import write_once

SUBJECT = "exactly-once"

PARTITIONS, EVENT_BYTES = 8, 100

#: A table's age, and whether others write into it in between.
Case = tuple[str, bool]
CASES: tuple[Case, ...] = tuple(itertools.product(("young", "old"), (False, True)))

ONCE, PLAIN, IDEMPOTENT = "write_once", "plain append", "append with txnAppId"

#: Appends a frame, with the number of its batch, to the table at a path.
WAYS: dict[str, Callable[[DataFrame, int, str], None]] = {
    ONCE: write_once,
    PLAIN: lambda df, n, path: df.write.format("delta").mode("append").save(path),
    IDEMPOTENT: lambda df, n, path: (
        df.write.format("delta").mode("append").options(txnAppId="bench", txnVersion=n).save(path)
    ),
}


def measure(
    spark: SparkSession,
    folder: Path,
    log: Log,
    *,
    cases: Sequence[Case] = CASES,
    events: int,
    commits: int,
    warm_up: int,
    runs: int,
) -> Iterator[Row]:
    """Measure `runs` batches of `events` events; the old table has `commits` commits before. In the
    `warm_up` batches before them code is compiled, and marks are asked for."""
    places = {
        (age, shared, way): str(folder / "once" / f"{age}-{'shared' if shared else way.split()[0]}")
        for (age, shared), way in itertools.product(cases, WAYS)
    }
    old = {path for (age, _, _), path in places.items() if age == "old"}
    if old:
        log(f"exactly once: a table with {commits:,} commits")
        history = _history(folder / "history", commits)
        for path in old:
            shutil.copytree(history, path)
    took: dict[tuple[str, bool, str], list[float]] = {key: [] for key in places}

    def batch(df: DataFrame, number: int) -> None:
        log(f"exactly once: batch {number} of {runs + warm_up - 1}")
        frame = df.select("partition", "sequenceNumber", "body").persist()
        frame.count()
        for age, shared in cases:
            ways = [*WAYS]
            for way in ways[number % 3 :] + ways[: number % 3]:
                began = time.monotonic()
                WAYS[way](frame, number, places[age, shared, way])
                if number >= warm_up:
                    took[age, shared, way].append(1000 * (time.monotonic() - began))
        frame.unpersist()

    with emulator(PARTITIONS) as server:
        for partition in range(PARTITIONS):
            server.fill(partition, b"x" * EVENT_BYTES, events * (runs + warm_up) // PARTITIONS)
        options = {"connectionString": server.address, "startingPosition": "earliest", "eventHubName": HUB}
        options |= {"leaseTable": str(folder / "once" / "leases"), "maxEventsPerTrigger": str(events)}
        stream = spark.readStream.format("ehbalance").options(**options).load()
        writer = stream.writeStream.foreachBatch(batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "once" / "checkpoint")).start().awaitTermination()
    for age, shared in cases:
        what = f"{age} table" + (", others write too" if shared else "")
        ours, plain, idempotent = (tuple(took[age, shared, way]) for way in WAYS)
        yield Row(SUBJECT, what, "ms", ours, compared={PLAIN: plain, IDEMPOTENT: idempotent})
        for bar, name, theirs in ((1.0, PLAIN, plain), (0.7, IDEMPOTENT, idempotent)):
            ratios = tuple(our / their for our, their in zip(ours, theirs, strict=True))
            yield Row(SUBJECT, f"{what}, by {name}", "times", ratios, Bar("most", bar))
    for shared in (False, True):
        if not {("young", shared), ("old", shared)} <= {*cases}:
            continue
        ratios = tuple(
            old / young for old, young in zip(took["old", shared, ONCE], took["young", shared, ONCE], strict=True)
        )
        what = "old table by young table" + (", others write too" if shared else "")
        yield Row(SUBJECT, what, "times", ratios, Bar("most", 1.2))


def _history(path: Path, commits: int) -> Path:
    row = pa.table({"partition": ["history"], "sequenceNumber": pa.array([0], pa.int64()), "body": [b"x"]})
    for _ in range(commits):
        write_deltalake(str(path), row, mode="append")
    return path
