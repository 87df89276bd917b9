"""The Spark application of the round trip: `python -m chaos.round_trip_query SETTINGS`, as `chaos.query` is run.

| command | effect |
|---|---|
| `{"do": "write", "from": …, "to": …}` | `df.write` of these numbers to hub A |
| `{"do": "copy"}` | a streaming query from hub A to hub B, in batches, until all is copied; restarted if it fails |
| `{"do": "stop"}` | `query.stop()`, which interrupts the running batch |
| `{"do": "read", "hub": …}` | `spark.read` of a hub into a file |
| end of input | the process ends |
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from chaos.query import Settings, listen, report, session, why
from chaos.round_trip_events import FRAME, PINNED, SLICES, written

#: Seconds before a failed query is restarted.
_RESTART_AFTER = 1.0


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=listen, args=(commands,), daemon=True).start()
    spark = session(settings)
    spark_ehbalance.register(spark)
    report("ready")
    query: StreamingQuery | None = None
    while True:
        try:
            command = commands.get(timeout=0.1)
        except queue.Empty:
            if query is not None and not query.isActive:
                failed = query.exception() is not None
                report("failed" if failed else "copied", why=why(query) if failed else "")
                query = None
                if failed:
                    time.sleep(_RESTART_AFTER)
                    query = _copy(spark, settings)
            continue
        match command["do"]:
            case "write":
                _write(spark, settings, int(command["from"]), int(command["to"]))
            case "copy":
                query = _copy(spark, settings)
            case "stop" if query is not None:
                query.stop()
                query = None
                report("stopped")
            case "read":
                _read(spark, settings, command["hub"])
            case "end":
                break
    if query is not None:
        query.stop()
    spark.stop()


def _options(settings: Settings, hub: str) -> dict[str, str]:
    given: dict[str, str] = json.loads(settings.options["connection"])
    return {**given, "eventHubName": hub, "jsonProperties": "true"}


def _write(spark: SparkSession, settings: Settings, first: int, end: int) -> None:
    total, seed = int(settings.options["events"]), int(settings.options["seed"])
    numbers = spark.range(first, end, 1, max(1, (end - first) * SLICES // total))
    rows = numbers.mapInArrow(partial(written, seed=seed, total=total), FRAME)
    try:
        rows.write.format("ehbalance").options(**_options(settings, "a")).mode("append").save()
    except Exception as error:  # the test tells
        report("not written", why=str(error)[:4000])
    else:
        report("written")


def _copy(spark: SparkSession, settings: Settings) -> StreamingQuery:
    more = {"startingPosition": "earliest", "maxEventsPerTrigger": settings.options["perTrigger"]}
    frame = spark.readStream.format("ehbalance").options(**_options(settings, "a"), **more).load()
    pinned = f"CASE WHEN properties['{PINNED}'] IS NOT NULL THEN partition END AS partitionId"
    rows = frame.selectExpr("body", "partitionKey", pinned, "properties")
    writer = rows.writeStream.format("ehbalance").options(**_options(settings, "b"))
    writer = writer.option("checkpointLocation", str(Path(settings.folder) / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def _read(spark: SparkSession, settings: Settings, hub: str) -> None:
    frame = spark.read.format("ehbalance").options(**_options(settings, hub)).load()
    columns = ("partition", "sequenceNumber", "enqueuedTime", "body", "partitionKey", "properties")
    pq.write_table(frame.select(*columns).toArrow(), Path(settings.folder) / f"{hub}.parquet")
    report("read", hub=hub)


if __name__ == "__main__":
    main()
