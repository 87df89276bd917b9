"""A streaming source that does nothing itself, so that its cost is Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


def trivial_source() -> type[DataSource]:
    """A source named `trivial`, which reads eight rows in one task. It is local to this function, so Spark pickles it
    by value, and its workers need not import it."""

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:
            return {"next": 0}

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
            return {"next": 8}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(number,) for number in range(8)])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "trivial"

        def schema(self) -> str:
            return "number long"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

    return Source
