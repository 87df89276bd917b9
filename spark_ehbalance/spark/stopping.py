"""Stop a query without duplicates."""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.spark.planners import end_offsets, find_driver, report_end


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop `query` without causing duplicate events: wait for the running batch to finish, then release the partitions.
    After `timeout` seconds, the batch is aborted.

    `query.stop()` alone aborts the running batch, so the next owners read its events again.
    """
    hand_over(query, timeout)
    query.stop()


def hand_over(query: StreamingQuery, timeout: float) -> bool:
    """Wait for at most `timeout` seconds until the running batch has ended and the partitions are released. Returns
    whether the partitions were released; False if the query ended by itself."""
    deadline = time.monotonic() + timeout
    spark, driver = find_driver(query)
    while query.isActive and time.monotonic() < deadline:
        progress: Any = query.lastProgress
        # The planners' addresses are unknown until the first batch has ended, and Spark runs that batch in any case. An
        # answer states whether all partitions are released; None means that the planner has ended.
        ends = list(end_offsets(json.loads(progress.json))) if progress else None
        if ends is not None and False not in [report_end(end, driver, spark, leave=True) for end in ends]:
            return True
        time.sleep(0.1)
    return False
