"""Two concurrent MERGEs of the same events into one table."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ehbalance.exactly_once.conflicts import find_conflict
from spark_ehbalance.exactly_once.marks import SequenceRange
from spark_ehbalance.exactly_once.merging import merge_writer
from spark_ehbalance.exactly_once.protocol import Conflict
from tests.waiting import wait_until


def race(spark: SparkSession, table: str, start: int, folder: Path) -> Conflict | None:
    """Run two MERGEs of five events from number `start` on. Returns the conflict of the first MERGE, or None
    if it succeeded. `folder` is used for signals."""
    extents = {"0": SequenceRange(start, start + 5)}
    began, goes_on = str(folder / "began"), str(folder / "goes-on")

    @F.udf("string")
    def waits(text: str) -> str:
        import time
        from pathlib import Path

        Path(began).touch()
        while not Path(goes_on).exists():
            time.sleep(0.02)
        return text

    events = spark.range(start, start + 5, 1, 1)
    rows = events.selectExpr("'0' AS partition", "id AS sequenceNumber", "'x' AS body")
    slow = rows.withColumn("body", waits("body"))
    errors = list[Exception]()

    def first() -> None:
        try:
            merge_writer(table, slow, extents).whenNotMatched().insertAll().merge()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        wait_until(lambda: Path(began).exists() or errors, "the first MERGE has begun")
        merge_writer(table, rows, extents).whenNotMatched().insertAll().merge()
    finally:
        Path(goes_on).touch()
        thread.join()
    return find_conflict(errors[0]) if errors else None
