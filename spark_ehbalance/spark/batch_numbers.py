"""Checks sinks that skip batches by number: Spark's file sink and Delta's own sink.

With a new or restored checkpoint, Spark reuses batch numbers, and such a sink silently skips batches with numbers that
it already has. Spark notifies its listeners of a query's start before it reads the query's log, so the numbers are
compared before anything is read. This works only through py4j, in the driver's JVM.
"""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException

from spark_ehbalance.dependencies import Py4JError
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.spark.datasource import EhBalanceDataSource
from spark_ehbalance.spark.error_line import line
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Prefixes of the two sinks' descriptions; a path and a bracket follow.
_FILES, _DELTA = "FileSink[", "DeltaSink["

#: Errors raised if a platform's JVM lacks a class or method; py4j takes a missing class for a package, which causes a
#: TypeError.
_NOT_THERE = (PySparkException, Py4JError, TypeError)


def check_batch_numbers(jvm: Any, session: Any, query_id: str) -> None:
    """Stop the query `query_id`, which is starting in the JVM's `session`, if it reads from `ehbalance` and its sink
    has a batch with a higher number than the last batch in its checkpoint."""
    try:
        query = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
        if query is None or not _reads_ehbalance(query):
            return
        logged, sink = query.offsetLog().getLatestBatchId(), str(query.sink())
        last, in_sink = logged.get() if logged.isDefined() else None, _last_batch(jvm, session, query, sink)
        if in_sink is not None and (last is None or in_sink > last):
            ends = "has no batch yet" if last is None else f"ends with batch {last}"
            checkpoint = query.resolvedCheckpointRoot()
            error = DataLossError("EHB_SINK_AHEAD", sink=sink, in_sink=in_sink, checkpoint=checkpoint, ends=ends)
            query.errorNotifier().markError(jvm.java.lang.IllegalStateException(line(error)))
    except _NOT_THERE as error:
        _LOG.info("query %s: cannot compare the batch numbers of its sink and its checkpoint: %s", query_id, error)


def _reads_ehbalance(query: Any) -> bool:
    leaves = query.analyzedPlan().collectLeaves()
    sources = (leaves.apply(number) for number in range(leaves.size()))
    return any(
        leaf.getClass().getSimpleName() == "StreamingRelationV2"
        and leaf.sourceName().lower() == EhBalanceDataSource.name()
        for leaf in sources
    )


def _last_batch(jvm: Any, session: Any, query: Any, sink: str) -> int | None:
    """The number of the sink's last batch; None if the sink has no batch, or does not record numbers."""
    if sink.startswith(_FILES):
        log = jvm.org.apache.hadoop.fs.Path(sink[len(_FILES) : -1], "_spark_metadata")
        files = log.getFileSystem(session.sessionState().newHadoopConf())
        names = [file.getPath().getName() for file in files.listStatus(log)] if files.exists(log) else []
        batches = (name.removesuffix(".compact") for name in names)
        return max((int(number) for number in batches if number.isdecimal()), default=None)
    if sink.startswith(_DELTA):
        table = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(session, query.sink().path())._2()
        known = table.transactions().get(str(query.id()))
        return int(known.get()) if known.isDefined() else None
    return None
