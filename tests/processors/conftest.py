from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.storage.azurite import ACCOUNT, make_container
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset, group_name
from spark_ehbalance.query.options import Options, stream_options
from tests.azure_storage.conftest import all_requests, proxy, storage
from tests.processors.group import PARTITIONS, MixedGroup
from tests.query.queries import Query
from tests.waiting import wait_until

__all__ = ["all_requests", "proxy", "storage"]


@pytest.fixture
def group(emulator: Emulator, storage: str, tmp_path: Path) -> Iterator[MixedGroup]:
    """A hub with 12 partitions and a container for the group's blobs."""
    emulator.add_hub("hub", PARTITIONS)
    container = uuid.uuid4().hex
    make_container(storage, container)
    made = MixedGroup(emulator, f"{storage}/{ACCOUNT}", container, tmp_path)
    yield made
    made.close()


@pytest.fixture
def options(group: MixedGroup) -> Options:
    return stream_options(group.options | {"balanceInterval": "0.3s", "strategy": "greedy"})


Start = Callable[..., Query]


@pytest.fixture
def start(options: Options) -> Iterator[Start]:
    """Starts a query and waits until it owns `owned` partitions."""
    queries: list[Query] = []

    def begin(finished: StreamOffset | None = None, *, owned: int = 0, **changed: Any) -> Query:
        own = replace(options, **changed)
        finished = finished or StreamOffset("a", group=group_name(own.lease_table))
        query = Query(start_planner(own, "a", finished), "a", finished)
        queries.append(query)
        wait_until(lambda: len(query.owned()) >= owned, f"the query owns {owned} partitions")
        return query

    yield begin
    for query in queries:
        query.stop()


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> str:
    return class_path(Path(__file__).with_name("pom.xml"), tmp_path_factory)


def class_path(pom: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A project's jars from the local Maven repository, without downloads. Skips the test if one is missing."""
    if not (shutil.which("mvn") and shutil.which("javac")):
        pytest.skip("Java's compiler and Maven are needed")
    path = tmp_path_factory.mktemp("java") / "class-path"
    maven = ["mvn", "-q", "-B", "-o", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={path}"]
    if subprocess.run(maven, capture_output=True, check=False).returncode:
        pytest.skip(f"jars are not here: mvn -f {pom} dependency:build-classpath")
    return path.read_text()
