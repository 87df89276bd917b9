"""Spark queries and unmodified Python consumers of the Azure SDK in one group."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.storage.azurite import ACCOUNT, make_container
from spark_ehbalance.emulator import Emulator
from tests.azure_storage.conftest import storage
from tests.processors.group import PARTITIONS, MixedGroup
from tests.processors.sharing import share
from tests.spark.members import SparkMember
from tests.spark.query_process import QueryProcess

__all__ = ["storage"]

pytestmark = pytest.mark.spark


def test_two_python_consumers_and_two_spark_queries(
    storage: str, processes: list[QueryProcess], tmp_path: Path
) -> None:
    make_container(storage, "spark")
    idle = list(processes)
    with Emulator({"hub": PARTITIONS}) as emulator:
        group = MixedGroup(emulator, f"{storage}/{ACCOUNT}", "spark", tmp_path)

        def query(name: str) -> SparkMember:
            options = group.options | {"ownerId": name}
            group.members.append(member := SparkMember(name, idle.pop(0), options, tmp_path / name))
            return member

        try:
            share(group, group.consumer, group.consumer, query)
        finally:
            group.close()
