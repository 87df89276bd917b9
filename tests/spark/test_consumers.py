"""Plain consumers share a hub with Spark queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.consumer.mixed import Mixed, share_through_everything
from tests.spark.members import SparkMember
from tests.spark.query_process import QueryProcess

pytestmark = pytest.mark.spark


class WithSpark(Mixed):
    """A group whose queries are Spark's, one in each of `processes`."""

    processes: list[QueryProcess]

    def query(self, name: str) -> SparkMember:
        self.members.append(member := SparkMember(name, self.processes.pop(0), self.options, self.folder / name))
        return member


def test_consumers_and_spark_queries_share_a_hub(processes: list[QueryProcess], tmp_path: Path) -> None:
    # Sparks that start keep both cores busy.
    with Emulator() as emulator, WithSpark(emulator, tmp_path, lease=6) as mixed:
        mixed.processes = list(processes)
        share_through_everything(mixed, "sync", "async", abrupt=["query3"])  # stopped within a batch
