"""`write_once` compared with Delta's plain append and its idempotent append: they write the same frame in turns, in the
same `foreachBatch`.

The table is either new or has a long history, and either each writer has its own table or they share one. If they share
a table, Delta has to recompute its state whenever it is read after a write.
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

from bench.common import Bar, Bench, Log, Row, emulator, ratios
from spark_ehbalance.exactly_once import write_once

PARTITIONS, EVENT_BYTES = 8, 100

#: A table's age, and whether others also write to it.
Case = tuple[str, bool]
CASES: tuple[Case, ...] = tuple(itertools.product(("young", "old"), (False, True)))

ONCE, PLAIN, IDEMPOTENT = "write_once", "plain append", "append with txnAppId"

#: Name → function that appends a frame, with the number of its batch, to the table at a path.
WAYS: dict[str, Callable[[DataFrame, int, str], None]] = {
    ONCE: write_once,
    PLAIN: lambda df, n, path: df.write.format("delta").mode("append").save(path),
    IDEMPOTENT: lambda df, n, path: (
        df.write.format("delta").mode("append").options(txnAppId="bench", txnVersion=n).save(path)
    ),
}


def _what(case: Case) -> str:
    return f"{case[0]} table" + (", others write too" if case[1] else "")


def measure(
    spark: SparkSession,
    folder: Path,
    log: Log,
    *,
    cases: Sequence[Case],
    events: int,
    commits: int,
    warm_up: int,
    runs: int,
) -> Iterator[Row]:
    """Measure `runs` batches of `events` events, after `warm_up` batches. The old table has `commits` commits."""
    place = folder / "once"
    paths = {
        (case, way): str(place / f"{case[0]}-{'shared' if case[1] else way.split()[0]}")
        for case, way in itertools.product(cases, WAYS)
    }
    if old := {path for (case, _), path in paths.items() if case[0] == "old"}:
        log(f"a table with {commits:,} commits")
        row = pa.table({"partition": ["history"], "sequenceNumber": pa.array([0], pa.int64()), "body": [b"x"]})
        for _ in range(commits):
            write_deltalake(str(place / "history"), row, mode="append")
        for path in old:
            shutil.copytree(place / "history", path)
    took: dict[tuple[Case, str], list[float]] = {key: [] for key in paths}

    def batch(df: DataFrame, number: int) -> None:
        log(f"batch {number} of {runs + warm_up - 1}")
        frame = df.select("partition", "sequenceNumber", "body").persist()
        frame.count()
        for case in cases:
            ways = [*WAYS]
            for way in ways[number % 3 :] + ways[: number % 3]:
                began = time.monotonic()
                WAYS[way](frame, number, paths[case, way])
                if number >= warm_up:
                    took[case, way].append(1000 * (time.monotonic() - began))
        frame.unpersist()

    with emulator(PARTITIONS) as server:
        for partition in range(PARTITIONS):
            server.fill(partition, b"x" * EVENT_BYTES, events * (runs + warm_up) // PARTITIONS)
        options = {"connectionString": server.address, "startingPosition": "earliest"}
        options |= {"leaseTable": str(place / "leases"), "maxEventsPerTrigger": str(events)}
        stream = spark.readStream.format("ehbalance").options(**options).load()
        writer = stream.writeStream.foreachBatch(batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(place / "checkpoint")).start().awaitTermination()
    for case in cases:
        ours, plain, idempotent = (took[case, way] for way in WAYS)
        yield Row(_what(case), "ms", ours, {PLAIN: plain, IDEMPOTENT: idempotent})
        yield Row(f"{_what(case)}, by {PLAIN}", "×", ratios(ours, plain))
        yield Row(f"{_what(case)}, by {IDEMPOTENT}", "×", ratios(ours, idempotent))


BENCH = Bench(
    "exactly-once",
    measure,
    compared_with="a plain append, and one with txnAppId",
    short={"cases": CASES[:1], "events": 8_000, "commits": 0, "warm_up": 1, "runs": 1},
    full={"cases": CASES, "events": 160_000, "commits": 2_000, "warm_up": 3, "runs": 9},
    bars={
        f"{_what(case)}, by {way}": Bar("most", most)
        for case, (way, most) in itertools.product(CASES, ((PLAIN, 1.0), (IDEMPOTENT, 0.7)))
    },
    needs_spark=True,
)
