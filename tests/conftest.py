"""Fixtures shared by several folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.spark_versions import UNIX_SOCKET
from tests.spark.settings import INTERPRETED

#: With pytest-xdist, tests that share one of these fixtures run one after another in the same process, because Spark
#: and processes with Spark are reused. Other tests are grouped by file; a file can name its own group.
_SHARED = {"spark": "spark", "processes": "spark processes"}

#: The slowest groups; starting them first lets the others run in parallel.
_FIRST = (
    "spark",
    "spark processes",
    "own spark",
    "simulation/test_runs.py",
    "processors/test_sharing.py",
    "processors/test_queries.py",
    "group/strategies/test_cooperative.py",
    "group/strategies/test_properties.py",
    "group/strategies/test_limits.py",
    "query/test_consistency_combinations.py",
    "query/test_range_reader.py",
)


def _group(item: pytest.Item) -> str:
    if own := item.get_closest_marker("xdist_group"):
        return str(own.args[0])
    shared = [group for fixture, group in _SHARED.items() if fixture in getattr(item, "fixturenames", ())]
    return shared[-1] if shared else str(item.path.relative_to(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _FIRST.index(_group(item)) if _group(item) in _FIRST else len(_FIRST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """With an unsuitable pytest, pytest-xdist silently ignores the groups, and every process starts all Sparks."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "pytest-xdist does not know the tests' groups"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with Delta."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)
    settings = INTERPRETED | {UNIX_SOCKET: "true", "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A running emulator for this test alone, without hubs."""
    with Emulator() as running:
        yield running


@pytest.fixture(autouse=True)
def no_listeners(request: pytest.FixtureRequest) -> Iterator[None]:
    """Removes the listeners that a test added to the shared session."""
    session = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    if isinstance(session, SparkSession):
        manager: Any = session.streams
        for listener in manager._jsqm.listListeners():
            manager._jsqm.removeListener(listener)
