"""Messages from a Spark Connect client to planners on another machine.

A planner's control socket is reachable only on its own machine. Spark calls a data source's `partitions` there, so a
client reads from a source that forwards the message and returns the planner's answer as its only row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_ehbalance.query.control_socket import Answer, PlannerAddress, send
from spark_ehbalance.query.processes import jvm_pid

_TO, _MESSAGE = "planner", "message"


def send_by_server(spark: SparkSession, lineage: str, message: dict[str, Any]) -> Answer | None:
    """Send a message to the planner of `lineage`, like `control_socket.send`, but on the machine of the driver of
    `spark`. `PlannerMessages` must be registered there. Runs a Spark job. Raises Spark's errors."""
    reader = spark.read.format(PlannerMessages.name()).options(**{_TO: lineage, _MESSAGE: json.dumps(message)})
    answer: Answer | None = json.loads(reader.load().collect()[0][0])
    return answer


class PlannerMessages(DataSource):
    """A source that forwards one message when it is read; its only row is the answer."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ehbalance_planner"

    def schema(self) -> str:
        """A column of JSON text, which is null if there is no such planner."""
        return "answer string"

    def reader(self, schema: StructType) -> _Reader:
        """The reader for `spark.read`."""
        return _Reader(self.options[_TO], json.loads(self.options[_MESSAGE]))


@dataclass
class _Answer(InputPartition):
    answer: Answer | None


class _Reader(DataSourceReader):
    def __init__(self, lineage: str, message: dict[str, Any]) -> None:
        self._lineage, self._message = lineage, message

    def partitions(self) -> list[InputPartition]:
        """Called on the driver's machine, where the planner is."""
        return [_Answer(send(PlannerAddress(self._lineage, jvm_pid()), self._message))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Called in an executor."""
        assert isinstance(partition, _Answer)
        yield (json.dumps(partition.answer),)
