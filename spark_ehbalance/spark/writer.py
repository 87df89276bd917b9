"""The writers for `df.write` and `df.writeStream`. Spark pickles them for the executors' Python workers.

Delivery is at least once: if Spark runs a task or batch again, the hub may contain its events twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import WriteOptions
from spark_ehbalance.eventhub.sending.writing import SendResult, WriteTask
from spark_ehbalance.spark.error_line import single_line_errors
from spark_ehbalance.spark.logs import set_up_logging
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Rows per Arrow batch, if Spark passes rows.
_ROWS = 10_000


@dataclass
class TaskDone(WriterCommitMessage):
    """Counts of a finished task."""

    sent: SendResult


@dataclass
class _Writing:
    """Base class of the batch and stream writers."""

    options: WriteOptions
    columns: SinkColumns
    schema: StructType = field(repr=False)

    @single_line_errors()
    def write(self, iterator: Iterator[Any]) -> TaskDone:
        """Send the rows of a task. Called in an executor's Python worker, once per attempt of the task. Raises the same
        errors as `WriteTask.write`."""
        set_up_logging()
        batches = iterator if takes_arrow(self) else _as_arrow(iterator, self.schema)
        return TaskDone(WriteTask(self.options, self.columns).write(batches))

    def finished(self, messages: Sequence[Any], what: str) -> None:
        """Log the counts of all tasks."""
        set_up_logging()
        sent = _sent(messages)
        _LOG.info(
            "%s finished: hub=%s events=%d bytes=%d batches=%d resent=%d throttled=%d",
            what, self.options.connection.hub_name, sent.events, sent.bytes, sent.batches, sent.again, sent.busy,
        )  # fmt: skip
        if sent.again:
            _LOG.warning(
                "%s: %d batches were sent again after a missing acknowledgement; their events may be in %s twice",
                what, sent.again, self.options.connection.hub_name,
            )  # fmt: skip
        if sent.skipped:
            _LOG.warning(
                "%s: %d rows were not sent to %s (onUnsendable=skip). The first was skipped because %s",
                what, sent.skipped, self.options.connection.hub_name, sent.problem,
            )  # fmt: skip

    def failed(self, messages: Sequence[Any], what: str) -> None:
        """Log a warning with the number of events that finished tasks have sent."""
        set_up_logging()
        _LOG.warning(
            "%s failed or was stopped. %d events from its finished tasks, and any events that other tasks had already "
            "sent, are in %s; if it runs again, they will be there twice",
            what, _sent(messages).events, self.options.connection.hub_name,
        )  # fmt: skip


def _sent(messages: Sequence[Any]) -> SendResult:
    """The counts of all finished tasks. Failed tasks have no message."""
    sent = SendResult()
    for message in messages:
        if isinstance(message, TaskDone):
            sent.add(message.sent)
    return sent


class BatchWriter(_Writing, getattr(datasource, "DataSourceArrowWriter", DataSourceWriter)):  # type: ignore[misc]
    """The writer for `df.write`."""

    def commit(self, messages: list[Any]) -> None:
        """Called on the driver's machine once all tasks have ended."""
        self.finished(messages, "Write")

    def abort(self, messages: list[Any]) -> None:
        """Called on the driver's machine when a task has failed for the last time."""
        self.failed(messages, "Write")


class StreamWriter(_Writing, getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)):  # type: ignore[misc]
    """The writer for `df.writeStream`."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Called on the driver's machine once all tasks of a micro-batch have ended."""
        self.finished(messages, f"Batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Called on the driver's machine when a task of a micro-batch has failed for the last time."""
        self.failed(messages, f"Batch {batchId}")


def takes_arrow(writer: Any) -> bool:
    """Whether Spark passes Arrow batches to this writer; for streams, Spark 4.0 passes rows."""
    kinds = (getattr(datasource, name, None) for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter"))
    return isinstance(writer, tuple(kind for kind in kinds if kind is not None))


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer for a batch. Raises `OptionError` if an option or a column is invalid, or with `overwrite`."""
    if overwrite:
        raise OptionError("EHB_OPTION_INVALID", option="mode", value="'overwrite'", allowed="'append'")
    return BatchWriter(options, _columns(options, schema), schema)


def stream_writer(options: WriteOptions, schema: StructType) -> StreamWriter:
    """The writer for a stream. As in Spark's Kafka sink, all rows of a batch are sent, even in complete and update
    mode. Raises `OptionError`."""
    return StreamWriter(options, _columns(options, schema), schema)


def unsendable(frame: DataFrame, options: WriteOptions, sent: Sequence[str]) -> DataFrame:
    """The rows of `frame` that cannot be sent with these `options`, with an additional `reason` column. Only the
    columns in `sent` become part of an event. Raises `OptionError`."""
    ordered = frame.select(*sent, *(name for name in frame.columns if name not in sent))
    columns = _columns(options, ordered.select(*sent).schema)

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_up_logging()
        yield from WriteTask(options, columns).unsendable(batches)

    return ordered.mapInArrow(check, StructType([*ordered.schema, StructField("reason", StringType())]))


def _columns(options: WriteOptions, schema: StructType) -> SinkColumns:
    return SinkColumns.from_schema(schema, kafka=options.kafka_columns, json=options.json_properties)


def _as_arrow(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    types = to_arrow_schema(schema)
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == _ROWS:
            yield _batch(some, types)
            some = []
    if some:
        yield _batch(some, types)


def _batch(rows: list[Row], types: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array([_plain(value) for value in c], type) for c, type in zip(columns, types.types, strict=True)]
    return pa.record_batch(arrays, schema=types)


def _plain(value: Any) -> Any:
    """The value in the form that Arrow requires: maps as lists of pairs."""
    if isinstance(value, dict):
        return list(value.items())
    return [item.asDict() if isinstance(item, Row) else item for item in value] if isinstance(value, list) else value
