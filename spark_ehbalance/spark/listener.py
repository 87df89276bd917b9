"""The listener for a session's queries, which reports the end of each batch to their planners."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.batch_numbers import check_batch_numbers
from spark_ehbalance.spark.offset_log import end_offsets
from spark_ehbalance.spark.planners import process_id, report_end
from spark_ehbalance.text import logger

_LOG = logger(__name__)


class BatchEndListener(StreamingQueryListener):
    """Reports the end of each batch to the planners of the query's `ehbalance` sources, and whether two of these
    sources share a lease table. Warns about sinks that lose rows if several queries share a hub. Ends a query whose
    sink already has later batches than its checkpoint."""

    def __init__(self, spark: Any = None) -> None:
        """`spark` is the queries' session. If it is None or has no JVM, batch numbers and the number of cores are not
        read."""
        super().__init__()
        self._jvm: Any = spark and spark._jvm
        self._session: Any = spark and spark._jsparkSession
        self._driver = 0 if self._jvm is None else process_id(self._jvm)
        self._warned: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._jvm is not None:  # Spark waits for this call before it reads the query's log
            check_batch_numbers(self._jvm, self._session, str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        ends = end_offsets(progress)
        groups = Counter(end.group for end in ends if end.group)
        cores = self._cores() if ends else None
        for end in ends:
            report_end(end, self._driver, twice=groups[end.group] > 1, cores=cores)
        if progress["id"] not in self._warned and (warning := _sink_warning(progress, ends)):
            self._warned.add(progress["id"])
            _LOG.warning(warning)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _cores(self) -> int | None:
        """Number of tasks that can run concurrently. It is read for each batch, because the number of executors may
        change."""
        if self._session is None:
            return None
        cores: int = self._session.sparkContext().defaultParallelism()
        return cores


def _sink_warning(progress: dict[str, Any], ends: list[StreamOffset]) -> str | None:
    """A warning if the query has a lease table and writes with Spark's file sink; otherwise None."""
    sink = progress["sink"]["description"]
    if not sink.startswith("FileSink[") or not any(end.group for end in ends):
        return None
    return (
        f"query {progress['name'] or progress['id']} has a lease table and writes plain files, {sink}: if several "
        "queries write to the same folder, each skips batch numbers that another has already written, and rows are "
        "lost. Write to a Delta table, or use a separate folder for each query"
    )
