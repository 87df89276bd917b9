"""The data source `format("ehbalance")`, which reads streams and batches, and writes them with the module `writer`.

Spark uses each stream's reader in three places. In the driver, it only creates the reader. In a *planner*, a Python
process per query, it requests offsets and partitions. In the executors' Python workers, it calls `read`, once per task.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.rows import SPARK_SCHEMA
from spark_ehbalance.query.columns import ALL_COLUMNS, Columns
from spark_ehbalance.query.control_socket import PlannerAddress
from spark_ehbalance.query.finished_batches import NewestBatch
from spark_ehbalance.query.offsets import StreamOffset, group_name
from spark_ehbalance.query.options import (
    BATCH,
    STREAM,
    Options,
    batch_options,
    check_options,
    option_names,
    stream_options,
)
from spark_ehbalance.query.processes import local_cores, mint_owner_id, spark_master
from spark_ehbalance.settings.locations import is_relative
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.spark.error_line import single_line_errors
from spark_ehbalance.spark.import_path import WithImportPath
from spark_ehbalance.spark.logs import set_up_logging
from spark_ehbalance.spark.spark_api import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from spark_ehbalance.spark.worker_memory import freeze_modules
from spark_ehbalance.text import logger

# A start has processes for the schema, the planner and the tasks, so each function imports what only one of them needs.
if TYPE_CHECKING:
    from spark_ehbalance.eventhub.sending.write_options import WriteOptions
    from spark_ehbalance.query.planner import Planner
    from spark_ehbalance.spark.writer import BatchWriter, StreamWriter

_LOG = logger(__name__)


class EhBalanceDataSource(WithImportPath, DataSource):
    """Azure Event Hubs as a Spark source that shares partitions between queries. Options: see `options.Options`."""

    @single_line_errors()
    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `OptionError`. Options are checked here, because Spark garbles errors that `reader` and `streamReader`
        raise."""
        super().__init__(options)  # type: ignore[arg-type]
        check_options(options)
        table = next((value for name, value in options.items() if name.lower() == "leasetable"), "/")
        if is_relative(table.strip()) and not (spark_master() or "").startswith("local"):
            allowed = (
                "an address or an absolute path; a relative path is allowed only if Spark's master is known to be local"
            )
            raise OptionError("EHB_OPTION_INVALID", option="leaseTable", value=redacted(table), allowed=allowed)

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ehbalance"

    def schema(self) -> str:
        """The columns, as DDL."""
        return SPARK_SCHEMA

    @single_line_errors()
    def reader(self, schema: StructType) -> BatchReader:
        """The reader for `spark.read`. Raises `OptionError`."""
        columns = _columns(schema)
        return BatchReader(batch_options(self.options), columns)

    @single_line_errors()
    def streamReader(self, schema: StructType) -> StreamReader:
        """The reader for `spark.readStream`. Spark calls this once for the planner, and again to pickle the reader for
        the executors. Raises `OptionError`."""
        columns = _columns(schema)
        return StreamReader(stream_options(self.options), columns)

    @single_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer for `df.write`. Raises `OptionError`."""
        from spark_ehbalance.spark.writer import batch_writer

        return batch_writer(self._write_options(), schema, overwrite=overwrite)

    @single_line_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer for `df.writeStream`. Raises `OptionError`."""
        from spark_ehbalance.spark.writer import stream_writer

        return stream_writer(self._write_options(), schema)

    def _write_options(self) -> WriteOptions:
        from spark_ehbalance.eventhub.sending.write_options import write_options

        return write_options(self.options, {*option_names(STREAM), *option_names(BATCH)})


def _columns(schema: StructType) -> Columns:
    """The columns selected by `.schema(...)`, by default all columns. Raises `OptionError`."""
    return Columns.from_schema((column.name, column.dataType.simpleString()) for column in schema)


@dataclass
class Task(InputPartition):
    """A task: ranges with their AMQP owner levels, the leases' owner (None without leases), and the planner for which
    the task calls `check_one_source`. `connection` contains the current key, because Spark pickles the reader only once
    per query."""

    ranges: tuple[tuple[OffsetRange, int | None], ...]
    owner: str | None
    connection: Connection
    checks: PlannerAddress | None = None


def _read(options: Options, columns: Columns, task: Task) -> Iterator[pa.RecordBatch]:
    from spark_ehbalance.query.concurrent_reader import read_concurrently
    from spark_ehbalance.query.range_reader import BatchFormat, read_range
    from spark_ehbalance.query.two_sources import check_one_source

    set_up_logging()
    freeze_modules()
    batches = BatchFormat(frozenset(columns.names))
    options = replace(options, connection=task.connection)
    readers = [
        partial(read_range, options, wanted, task.owner, level, batches=batches) for wanted, level in task.ranges
    ]
    with single_line_errors():
        if task.checks is not None:
            check_one_source(options.lease_table, task.checks)
        yield from map(columns.select, read_concurrently(readers))


class BatchReader(DataSourceReader):
    """Reads all partitions once, from the starting to the ending positions, and stores no progress."""

    def __init__(self, options: Options, columns: Columns = ALL_COLUMNS) -> None:
        self._options, self._columns = options, columns

    @single_line_errors()
    def partitions(self) -> list[InputPartition]:
        """The tasks. Called once per read, in a Python process on the driver's machine. Raises the same errors as
        `batch_ranges`."""
        from spark_ehbalance.query.batch_read import batch_ranges
        from spark_ehbalance.query.tasks import plan_tasks

        level = self._options.owner_level
        tasks = plan_tasks(batch_ranges(self._options), self._options.min_partitions, local_cores(spark_master()))
        # If the list were empty, Spark would replace it with a task of its own.
        connection = self._options.connection.with_current_key()
        return [Task(tuple((range_, level) for range_ in ranges), None, connection) for ranges in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Called once per attempt of the task, in an executor's Python worker."""
        assert isinstance(partition, Task)
        return _read(self._options, self._columns, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Translates Spark's calls for the `Planner`. The first call that needs the planner starts it, because Spark
    creates some readers only to pickle them for the executors."""

    def __init__(self, options: Options, columns: Columns = ALL_COLUMNS) -> None:
        self._options, self._columns = options, columns
        self._planner: Planner | None = None
        self._exporters = ExitStack()
        self._local_cores: int | None = None
        self._owner, self._lineage = options.owner_id, uuid.uuid4().hex
        self._available_now = False
        self._newest_batch: NewestBatch | None = NewestBatch()  # None if Spark passes the start of each batch
        self._start: dict[str, Any] | None = None
        self._start_offset = StreamOffset("")

    # --- in the planner ----------------------------------------------------------------------------------------

    @single_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        """The start offset of a query without a checkpoint; repeated calls return the same value. Called at every
        trigger until there is a batch, even if batch 0 was logged and is replayed."""
        self._owner = self._owner or mint_owner_id()
        group = group_name(self._options.lease_table)
        return StreamOffset(self._owner, group=group, lineage=self._lineage).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `maxEventsPerTrigger`, which Spark passes on to `latestOffset`. Spark 4.0 and 4.1 do not call
        this."""
        limit = self._options.max_events_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Called once, before `latestOffset`, if the query has that trigger. Spark 4.0 and 4.1 do not call this, and
        run a single batch: the unfinished batch in the log, or else a new one."""
        self._available_now = True

    @single_line_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch, or `start` itself if there is nothing to read.

        Called once per trigger, and about every 10 ms while the query is idle. `start` is the end of the last batch,
        which is finished, because Spark writes its commit before this call. Spark 4.0 and 4.1 pass neither start nor
        limit. Raises `EhBalanceError`.
        """
        if start is not None:
            self._newest_batch = None
            return self._end_after(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        newest = self._newest_batch or NewestBatch()
        if newest.pending is not None:
            return newest.pending
        begin = self.initialOffset() if newest.finished is None else newest.finished
        end = self._end_after(begin, self._options.max_events_per_trigger)
        if end is not newest.newest:
            self._newest_batch = newest.after_answer(begin, end)
        return end

    def _end_after(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """The end of a batch of at most `limit` events after `start`, the end of the last finished batch."""
        if start != self._start:
            self._start, self._start_offset = start, StreamOffset.from_json(start)
        planner = self._running_planner(self._start_offset)
        end = planner.latest_offset(self._start_offset, limit, available_now=self._available_now)
        if end is self._start_offset:
            return start
        # Spark 4.0 and 4.1 report this offset as the latest one.
        return end.to_json() | ({} if self._newest_batch is None else planner.lag.behind())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The hub's newest sequence numbers and the batch's lag, for the query's progress reports. Called once per
        trigger."""
        return None if self._planner is None else self._planner.lag.newest()

    @single_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch that ends at `end`. Called once per batch, after Spark has logged it. If the log
        contains an unfinished batch, this is the first call after a restart. In Spark 4.0 and 4.1, a restarted query
        begins with an empty batch at the newest logged end. Raises `EhBalanceError`."""
        from spark_ehbalance.query.tasks import plan_tasks

        if self._newest_batch is not None:
            self._newest_batch = self._newest_batch.after_partitions(start, end)
        if start == end and self._planner is None:
            return []
        to = StreamOffset.from_json(end)
        planner = self._running_planner(StreamOffset.from_json(start), to)
        cores = planner.cores or self._local_cores
        to_read = [] if start == end else planner.ranges(to)
        tasks = plan_tasks(to_read, self._options.min_partitions, cores)
        shared = self._options.lease_table is not None
        owner = planner.owner if shared else None
        # Split ranges have no owner level, because Event Hubs allows only one reader with an owner level per partition.
        split = self._options.min_partitions is not None
        connection = self._options.connection.with_current_key()
        made = [
            Task(
                tuple((range_, None if split else self._options.level(range_.epoch)) for range_ in ranges),
                owner,
                connection,
            )
            for ranges in tasks
        ]
        if shared and planner.query is None:
            # A query's first batch includes all sources, even those with nothing to read.
            made = made or [Task((), owner, connection)]
            made[0].checks = planner.address
        return list(made)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark calls it one batch late, and never for the last batch."""

    def stop(self) -> None:
        """Leave the group. Called once when the query ends. After SIGKILL it is not called, and the leases expire."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark also sends SIGTERM, which would interrupt this
        if self._planner is not None:
            if self._newest_batch is not None and self._newest_batch.in_doubt:
                self._planner.await_report()
                self._warn_of_backlog(self._planner.lag.left())
            self._planner.stop()
            self._exporters.close()
            self._planner = None
            if isinstance(sys.exc_info()[1], SystemExit | EOFError | ConnectionError):
                os._exit(0)  # Spark has closed the connection, and its runner would print a traceback

    def _warn_of_backlog(self, left: int) -> None:
        """Warn if events are left. Spark 4.0 and 4.1 end a query with `Trigger.AvailableNow` after one batch, and do
        not report the trigger."""
        limit = self._options.max_events_per_trigger
        if limit is not None and left:
            _LOG.warning(
                "the query ends before it has read all events, because Spark %s runs only one batch with "
                "Trigger.AvailableNow; the next run reads the rest backlog=%d maxEventsPerTrigger=%d",
                pyspark.__version__, left, limit,
            )  # fmt: skip

    def _exit_on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Exit with `SystemExit`, so that Spark's runner calls `stop`.

        Ignores the signal if the driver handles signals or a batch is in flight, because all of a job's processes may
        have received it. The driver then decides when the query ends; the planner ends when Spark closes the
        connection.
        """
        if self._planner is None or not (self._planner.attended or self._planner.in_batch):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.exit(0)

    def _running_planner(self, finished: StreamOffset, unfinished: StreamOffset | None = None) -> Planner:
        """The planner, started by the first call."""
        if self._planner is None:
            from spark_ehbalance.query.assembly import start_planner
            from spark_ehbalance.query.query_metrics import export_metrics

            signal.signal(signal.SIGTERM, self._exit_on_sigterm)
            # Ctrl-C reaches all processes of a terminal, but the driver decides when the query ends.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            set_up_logging()
            # Spark requests an initial offset even if batch 0 was logged and is replayed.
            last = unfinished if unfinished is not None and finished.is_initial else finished
            self._local_cores = local_cores(spark_master())
            # Spark 4.0 and 4.1 run one batch with `Trigger.AvailableNow`.
            full_share = self._newest_batch is not None or self._available_now
            self._planner = start_planner(self._options, last.owner, finished, unfinished, full_share=full_share)
            self._exporters = export_metrics(self._options, self._planner)
        return self._planner

    # --- in the executors --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task. Called once per attempt of the task, in an executor's Python worker, where this reader
        has no planner. Raises the same errors as `read_range`."""
        assert isinstance(partition, Task)
        return _read(self._options, self._columns, partition)
