"""Messages to planners on another machine, as seen from a Spark Connect client.

A planner's control socket can only be reached on its own machine. That is where Spark asks a data source which
partitions there are, so a client reads from one that passes the message on and has the planner's answer as its row.
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
    """As `control_socket.send` to the planner of that lineage, on the machine of the driver of `spark`, in which
    `PlannerMessages` is registered. Runs a job of one row. Raises what Spark raises."""
    reader = spark.read.format(PlannerMessages.name()).options(**{_TO: lineage, _MESSAGE: json.dumps(message)})
    answer: Answer | None = json.loads(reader.load().collect()[0][0])
    return answer


class PlannerMessages(DataSource):
    """Passes one message on when it is read; its one row is the answer."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ehbalance_planner"

    def schema(self) -> str:
        """As JSON; null stands for: there is no such planner."""
        return "answer string"

    def reader(self, schema: StructType) -> _Reader:
        """The reader of a `spark.read`."""
        return _Reader(self.options[_TO], json.loads(self.options[_MESSAGE]))


@dataclass
class _Answer(InputPartition):
    answer: Answer | None


class _Reader(DataSourceReader):
    def __init__(self, lineage: str, message: dict[str, Any]) -> None:
        self._lineage, self._message = lineage, message

    def partitions(self) -> list[InputPartition]:
        """Beside the driver, where the planner is, too."""
        return [_Answer(send(PlannerAddress(self._lineage, jvm_pid()), self._message))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """In an executor."""
        assert isinstance(partition, _Answer)
        yield (json.dumps(partition.answer),)
