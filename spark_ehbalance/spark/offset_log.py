"""The offsets of a query's `ehbalance` sources, in Spark's log and in progress reports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.sessions import SPARK_ERRORS


def logged(query: Any, batch_id: int) -> list[StreamOffset] | None:
    """The end offsets of the batch's `ehbalance` sources; None if Spark's log does not contain the batch."""
    entry, texts = query.offsetLog().get(batch_id), list[str]()
    if entry.isEmpty():
        return None
    # Version 2 of the log (since Spark 4.2) contains a map keyed by source name instead of a sequence.
    is_map = entry.get().getClass().getSimpleName() == "OffsetMap"
    offsets = entry.get().offsetsMap().valuesIterator() if is_map else entry.get().offsets().iterator()
    while offsets.hasNext():
        if (offset := offsets.next()).isDefined():
            texts.append(offset.get().json())
    return sources(texts)


def newest_logged(query: StreamingQuery) -> list[StreamOffset]:
    """The end offsets of the query's `ehbalance` sources in the newest batch of Spark's log; none if there is no batch,
    or if the log cannot be read, as with Spark Connect."""
    with contextlib.suppress(*SPARK_ERRORS, AttributeError, TypeError):
        execution = query._jsq.streamingQuery()
        if (newest := execution.offsetLog().getLatestBatchId()).isDefined():
            return logged(execution, newest.get()) or []
    return []


def end_offsets(progress: dict[str, Any]) -> list[StreamOffset]:
    """The end offset of each `ehbalance` source in a progress report."""
    return list(_parsed(source.get("endOffset") for source in progress["sources"]))


def sources(offsets: Iterable[str]) -> list[StreamOffset]:
    """The offset of each `ehbalance` source of a query, parsed from `offsets`, the JSON texts that Spark logged
    for a batch.

    Spark logs an offset once for each use of a source, for example twice if a stream is unioned with itself.
    """
    ours = list[StreamOffset]()
    for offset in _parsed(offsets):
        if offset not in ours:
            ours.append(offset)
    return ours


def _parsed(offsets: Iterable[Any]) -> Iterator[StreamOffset]:
    for offset in offsets:
        with contextlib.suppress(EhBalanceError, ValueError, RecursionError):  # the offset of another source
            yield StreamOffset.from_json(json.loads(offset) if isinstance(offset, str) else offset)
