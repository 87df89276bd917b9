"""Functions for driver programs: register the format, and stop a query without duplicates."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.source.control_socket import send
from spark_ehbalance.source.datasource import EhBalanceDataSource
from spark_ehbalance.source.offsets import StreamOffset
from spark_ehbalance.source.one_line import repeat_at_the_end

_LOG = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and report each batch's end to its query's lease keeper at once.

    Spark finds the format by itself if this package is installed. Queries with a long processing-time trigger need the
    listener: without it checkpoints and handovers wait for the next trigger. The exception of a stream that has failed
    then ends with the line that says why.
    """
    if importlib.util.find_spec("pyspark_ehbalance") is None:  # else Spark knows the format already, and would warn
        spark.dataSource.register(EhBalanceDataSource)
    spark.streams.addListener(BatchEndListener())
    repeat_at_the_end()


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop `query` without duplicates: its sources claim no more partitions, the running batch ends and is
    checkpointed, the partitions are released, and then the query is stopped.

    `query.stop()` alone interrupts the running batch, and the next owners read its events again. After `timeout`
    seconds the query is stopped in any case.
    """
    deadline = time.monotonic() + timeout
    while query.isActive and time.monotonic() < deadline:
        progress: Any = query.lastProgress
        # The planners' addresses are not known before the end of the first batch, which Spark runs in any case. An
        # answer tells whether all partitions are released; it is None if the planner is gone.
        ends = list(_ends(json.loads(progress.json))) if progress else None
        if ends is not None and False not in [_report_end(end, leave=True) for end in ends]:
            break
        time.sleep(0.1)
    query.stop()


class BatchEndListener(StreamingQueryListener):
    """Reports the end of each batch to the planners of its `ehbalance` sources, and warns of sinks that lose rows if
    queries share a hub."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        ends = list(_ends(progress))
        for end in ends:
            _report_end(end)
        if progress["id"] not in self._warned and (warning := _sink_warning(progress, ends)):
            self._warned.add(progress["id"])
            _LOG.warning(warning)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def _report_end(end: StreamOffset, *, leave: bool = False) -> bool | None:
    """Report to its planner that the sink has finished the batch that ends at `end`. Returns the planner's answer, or
    None."""
    return send(end.planner_name, {"finished": end.to_json(), "leave": leave})


def _sink_warning(progress: dict[str, Any], ends: list[StreamOffset]) -> str | None:
    """The warning for a query that has a lease table and writes with Spark's file sink; None for others."""
    sink = progress["sink"]["description"]
    if not sink.startswith("FileSink[") or not any(end.group for end in ends):
        return None
    return (
        f"query {progress['name'] or progress['id']} has a lease table and writes plain files, {sink}: if several "
        "queries write into one folder, each skips the batches whose number another has written, and rows are lost; "
        "write Delta, or give each query a folder of its own"
    )


def _ends(progress: dict[str, Any]) -> Iterator[StreamOffset]:
    """The end offset of each of our sources in a progress report."""
    for source in progress["sources"]:
        end = source.get("endOffset")
        with contextlib.suppress(EhBalanceError, ValueError):  # of another source
            yield StreamOffset.from_json(json.loads(end) if isinstance(end, str) else end)
