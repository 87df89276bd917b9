"""Stop a query without duplicates."""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.spark.offset_log import end_offsets, newest_logged
from spark_ehbalance.spark.planners import find_driver, report_end, send_to_planner


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop `query` without causing duplicate events: wait for the running batch (or the first, if the query is
    starting) to finish, then release the partitions. After `timeout` seconds, the batch is aborted.

    `query.stop()` alone aborts the batch, so its events are read again.
    """
    hand_over(query, timeout)
    query.stop()


def hand_over(query: StreamingQuery, timeout: float) -> bool:
    """Wait for at most `timeout` seconds until the running batch has ended and the partitions are released. Returns
    whether the partitions were released; False if the query ended by itself."""
    deadline = time.monotonic() + timeout
    spark, driver = find_driver(query)
    while query.isActive and time.monotonic() < deadline:
        if _request_release(query, spark, driver):
            return True
        time.sleep(0.1)
    return False


def _request_release(query: StreamingQuery, spark: SparkSession | None, driver: int) -> bool:
    """Request that the query leave its group. Returns whether all partitions are released."""
    progress: Any = query.lastProgress
    if progress:  # an answer of None means that the planner has ended
        ends = end_offsets(json.loads(progress.json))
        return False not in [report_end(end, driver, spark, leave=True) for end in ends]
    # Until the first batch has ended, only Spark's log contains the planner's address, and there may be no planner yet.
    lineages = [end.lineage for end in newest_logged(query)]
    answers = [send_to_planner(lineage, {"leave": True}, driver, spark) for lineage in lineages]
    return answers != [] and all(answer is True for answer in answers)
