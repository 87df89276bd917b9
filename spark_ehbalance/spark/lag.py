"""The lag of a running query, as reported by its planners."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.group.lag import PartitionLag, QueryLag
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.spark.offset_log import end_offsets
from spark_ehbalance.spark.planners import find_driver, report_end


def lag(query: StreamingQuery) -> QueryLag | None:
    """How far `query` is behind the hub. While a batch is running, the result is at most 1 s old.

    `partitions` lists the owned partitions, each with `hub`, `partition`, `next` (the sequence number of the first
    event that the sink has not finished), `end` (the newest sequence number + 1), `events` (`end` - `next`) and
    `seconds` (the time since event `next` was enqueued; None if unknown). The query's `events` is the sum over the
    partitions, and its `seconds` the maximum.

    Returns None before the first batch has ended, after the query has ended, or if its planner cannot be reached.
    """
    progress: Any = query.lastProgress
    if not query.isActive or not progress:
        return None
    spark, driver = find_driver(query)
    partitions: list[PartitionLag] = []
    ends = end_offsets(json.loads(progress.json))
    for end in ends:
        answer = report_end(end, driver, spark, lag=True)
        if not isinstance(answer, dict):
            return None
        hub = end.hub.name if end.hub else ""
        partitions += [
            PartitionLag(hub, partition, *answer["lag"][partition])
            for partition in sorted(answer["lag"], key=partition_order)
        ]
    return QueryLag(tuple(partitions)) if ends else None
