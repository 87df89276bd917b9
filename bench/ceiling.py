"""The most that Spark can do: a Python data source with our columns whose record batches are in memory already."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_ehbalance.hub import rows


class ReadySource(DataSource):
    """`events` of `size` bytes in `tasks` tasks, in record batches of `rows`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return rows.SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)


@dataclass
class _Task(InputPartition):
    events: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._events, self._size = int(options["events"]), int(options["size"])
        self._tasks, self._rows = int(options["tasks"]), int(options["rows"])

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to do: the number of events is fixed."""

    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:
        return {"end": self._events}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Task(self._events // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        ready = _ready(self._rows, self._size)
        left = partition.events
        while left > 0:
            yield ready.slice(0, min(left, ready.num_rows))
            left -= ready.num_rows


@functools.cache  # a worker makes each batch once
def _ready(count: int, size: int) -> pa.RecordBatch:
    body = bytes(size)
    system = {rows.OFFSET: b"4711", rows.SEQUENCE_NUMBER: 17, rows.ENQUEUED_TIME: 1_700_000_000_000}
    return rows.record_batch(((body, {**system}, {}) for _ in range(count)), "0", json_properties=False)
