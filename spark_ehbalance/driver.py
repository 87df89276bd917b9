"""What a driver program can call: make the format known, and stop a query without reading anything twice."""

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

_LOG = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("ehbalance")` known to `spark`, and tell each query's lease keeper at once when a batch has ended.

    Spark finds the format by itself where this package is installed. The listener matters for queries with a long
    processing-time trigger: without it checkpoints and handovers wait for the next trigger.
    """
    if importlib.util.find_spec("pyspark_ehbalance") is None:  # else Spark knows it, and would warn
        spark.dataSource.register(EhBalanceDataSource)
    spark.streams.addListener(BatchEndListener())


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop `query` without a duplicate: its sources take nothing more, the batch in flight ends and is checkpointed,
    the partitions are given back, and then the query is stopped.

    `query.stop()` alone breaks the batch in flight off: the next owner reads it again. After `timeout` seconds it is
    stopped in any case.
    """
    deadline = time.monotonic() + timeout
    while query.isActive and time.monotonic() < deadline:
        progress: Any = query.lastProgress
        # Before the end of the first batch, which Spark runs in any case, it is not known whom to ask. The answer is
        # whether everything is given back; there is none where there is no planner to ask.
        ends = list(_ends(json.loads(progress.json))) if progress else None
        if ends is not None and False not in [_tell(end, leave=True) for end in ends]:
            break
        time.sleep(0.1)
    query.stop()


class BatchEndListener(StreamingQueryListener):
    """Passes the end of every batch on to the planner of each of its `ehbalance` sources, and warns of sinks that lose
    rows where queries share."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        ends = list(_ends(progress))
        for end in ends:
            _tell(end)
        if progress["id"] not in self._warned and (warning := _sink_warning(progress, ends)):
            self._warned.add(progress["id"])
            _LOG.warning(warning)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def _tell(end: StreamOffset, *, leave: bool = False) -> bool | None:
    """Tell the planner of the batch that ends at `end` that it has been written; its answer, or None without one."""
    return send(end.reader, {"finished": end.to_json(), "leave": leave})


def _sink_warning(progress: dict[str, Any], ends: list[StreamOffset]) -> str | None:
    """What to say where a query with a lease table writes with Spark's file sink."""
    sink = progress["sink"]["description"]
    if not sink.startswith("FileSink[") or not any(end.group for end in ends):
        return None
    return (
        f"query {progress['name'] or progress['id']} has a lease table and writes plain files, {sink}: of queries that "
        "write into one folder each skips the batches whose number another has written, so that rows are lost; write "
        "Delta, or give each query a folder of its own"
    )


def _ends(progress: dict[str, Any]) -> Iterator[StreamOffset]:
    """The end offset of each of our sources in a progress report."""
    for source in progress["sources"]:
        end = source.get("endOffset")
        with contextlib.suppress(EhBalanceError, ValueError):  # another source's
            yield StreamOffset.from_json(json.loads(end) if isinstance(end, str) else end)
