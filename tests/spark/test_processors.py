"""Spark queries and unmodified Python consumers of the Azure SDK in one group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.storage.azurite import ACCOUNT, make_container
from spark_ehbalance.emulator import Emulator
from tests.azure_storage.conftest import storage
from tests.processors.group import PARTITIONS, MixedGroup
from tests.processors.sharing import share
from tests.spark.query_process import Query, QueryProcess

__all__ = ["storage"]

pytestmark = pytest.mark.spark


@dataclass
class SparkMember:
    """A streaming query in a Spark process of its own."""

    name: str
    process: QueryProcess
    query: Query
    running: bool = True

    def kill(self) -> None:
        self.running = False
        self.process.kill()

    def stop(self) -> None:
        self.running = False
        self.query.stop()

    def end(self) -> None:
        if self.running:
            self.stop()

    def seen(self) -> list[tuple[str, int]]:
        return self.query.rows()


def test_two_python_consumers_and_two_spark_queries(
    storage: str, processes: list[QueryProcess], tmp_path: Path
) -> None:
    make_container(storage, "spark")
    idle = list(processes)
    with Emulator({"hub": PARTITIONS}) as emulator:
        group = MixedGroup(emulator, f"{storage}/{ACCOUNT}", "spark", tmp_path)

        def query(name: str) -> SparkMember:
            process = idle.pop(0)
            started = process.start(group.options | {"ownerId": name}, tmp_path / name)
            group.members.append(member := SparkMember(name, process, started))
            return member

        try:
            share(group, group.consumer, group.consumer, query)
        finally:
            group.close()
