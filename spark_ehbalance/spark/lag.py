"""How far a running query is behind, as its planners know."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.group.lag import PartitionLag, QueryLag
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.spark.planners import driver_of, ends_of, report_end


def lag(query: StreamingQuery) -> QueryLag | None:
    """How far `query` is behind the hub now, by its planner's last knowledge of the hub, which is 1 s old at most while
    a batch runs.

    `partitions` has for each partition that the query holds its `hub` and `partition`, `next` (the sequence number of
    the first event that the sink has not finished), `end` (one more than that of the newest event), `events` (how many
    are unread) and `seconds` (since the event `next` was enqueued: 0 if all are read, None if that is not known). The
    sum of the `events` and the most `seconds` are those of the query; `seconds` is None where a partition's is.

    None before the end of the query's first batch is known, if the query has ended, and where its planner cannot be
    reached. With Spark Connect each call takes a job of one row.
    """
    progress: Any = query.lastProgress
    if not query.isActive or not progress:
        return None
    spark, driver = driver_of(query)
    partitions: list[PartitionLag] = []
    ends = list(ends_of(json.loads(progress.json)))
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
