"""The data source as Spark sees it: `format("ehbalance")` for streams and for batches."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_ehbalance.errors import OptionError
from spark_ehbalance.hub.rows import SPARK_SCHEMA
from spark_ehbalance.source.batch import batch_ranges
from spark_ehbalance.source.concurrent_reader import read_together
from spark_ehbalance.source.host import spark_master
from spark_ehbalance.source.logs import set_up_logging
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options, batch_options, check_options, stream_options
from spark_ehbalance.source.planner import Planner, mint_owner_id
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.tasks import plan_tasks
from spark_ehbalance.values.locations import is_relative
from spark_ehbalance.values.secrets import shown


class EhBalanceDataSource(DataSource):
    """Azure Event Hubs, read by Spark, with the partitions shared between queries. Options: see `options.Options`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        # What `reader` and `streamReader` raise reaches the user garbled, so that options are checked here.
        check_options(options)
        table = next((value for name, value in options.items() if name.lower() == "leasetable"), "/")
        if is_relative(table.strip()) and not (spark_master() or "").startswith("local"):
            raise OptionError(
                f"option leaseTable={shown(table)} is a relative path, another place for every job on a cluster: "
                "that is allowed only where Spark's master is known to be local. Write an address or a whole path"
            )

    @classmethod
    def name(cls) -> str:
        return "ehbalance"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(stream_options(self.options))


@dataclass
class Task(InputPartition):
    """One task: ranges, each with its AMQP owner level, and the member that holds their leases (None without)."""

    ranges: tuple[tuple[Range, int | None], ...]
    owner: str | None


def _read(options: Options, task: Task) -> Iterator[pa.RecordBatch]:
    set_up_logging()
    readers = [partial(read_range, options, wanted, task.owner, level) for wanted, level in task.ranges]
    return read_together(readers)


class BatchReader(DataSourceReader):
    """Reads all partitions once, between the starting and the ending positions, and leaves nothing behind."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        level = self._options.owner_level
        tasks = plan_tasks(batch_ranges(self._options), self._options.min_partitions)
        return [Task(tuple((each, level) for each in ranges), None) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Translates Spark's calls for the `Planner`.

    Spark builds a second one only to pickle it for the executors, so nothing is started before the first call that
    a planner gets.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planner: Planner | None = None
        self._owner = options.owner_id
        self._available_now = False
        self._start: dict[str, Any] | None = None
        self._begin = StreamOffset("")

    # --- in the planner ----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        # Asked again at every trigger until there is a batch: the owner id is minted once.
        self._owner = self._owner or mint_owner_id()
        return StreamOffset(self._owner, group=group_name(self._options.lease_table)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_events_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        start = self.initialOffset() if start is None else start
        if start != self._start:
            self._start, self._begin = start, StreamOffset.from_json(start)
        elif self._planner is not None and self._planner.still_idle(self._begin):
            return start
        begin = self._begin
        planner = self._planning(begin)
        # Spark has written the commit of the batch that ends here before it asks for the next one.
        planner.finish(begin)
        if self._available_now:
            planner.fix_ends()
        end = planner.next_batch(begin, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        end = planner.noted(begin) if end is begin else end
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._planner is None:
            return None
        return {"partitions": self._planner.latest()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        to = StreamOffset.from_json(end)
        planner = self._planning(StreamOffset.from_json(start), to)
        tasks = plan_tasks(planner.ranges(to), self._options.min_partitions)
        shared = self._options.lease_table is not None
        # Event Hubs allows one reader of a partition with an owner level, so that a split range is read without.
        leveled = shared and self._options.min_partitions is None
        owner, level = planner.owner if shared else None, self._options.owner_level
        return [Task(tuple((each, each.epoch if leveled else level) for each in ranges), owner) for ranges in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Not needed: it comes a batch late, and never for the last one."""

    def stop(self) -> None:
        # Spark sends SIGTERM as well, and would cut this short.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._planner is not None:
            self._planner.stop()
            self._planner = None

    def _planning(self, finished: StreamOffset, replayed: StreamOffset | None = None) -> Planner:
        """The planner, started by the first call that needs it."""
        if self._planner is None:
            signal.signal(signal.SIGTERM, _exit_on_sigterm)
            # Ctrl-C reaches every process of a terminal; the driver decides what becomes of the query.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            set_up_logging()
            # Spark asks for an initial offset also where the first batch of all was logged and is to be run again.
            logged = replayed if replayed is not None and finished.first else finished
            self._owner = self._options.owner_id or logged.owner
            self._planner = Planner(self._options, self._owner, finished, replayed)
        return self._planner

    # --- in the executors --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return _read(self._options, partition)


def _exit_on_sigterm(signum: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an orderly exit, in which Spark's runner calls `stop`; the default would skip it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
