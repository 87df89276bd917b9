"""A driver that is killed in the middle of a batch: `python -m matrix.checks.killed`, with its queries as JSON.

Each query writes its first batch. In its second one it says so and waits to be killed: that batch is logged, and not
finished.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from matrix.checks.session import make_session


def _start(spark: Any, query: dict[str, Any]) -> None:
    folder = Path(query["folder"])

    def write(df: DataFrame, batch: int) -> None:
        if query["target"]:
            from spark_ehbalance.delta import write_once

            write_once(df, batch, query["target"])
        rows = [[row.partition, row.sequenceNumber] for row in df.select("partition", "sequenceNumber").collect()]
        (folder / f"batch {batch}.partial").write_text(json.dumps(rows))
        (folder / f"batch {batch}.partial").rename(folder / f"batch {batch}.json")
        while batch > 0:
            time.sleep(1)

    stream = spark.readStream.format("ehbalance").options(**query["options"]).load()
    stream.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()


if __name__ == "__main__":
    session = make_session()
    for each in json.loads(sys.argv[1]):
        _start(session, each)
    session.streams.awaitAnyTermination()
