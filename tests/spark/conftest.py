"""Fixtures of the tests with real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.azure_storage.conftest import storage
from tests.cli.conftest import ehbalance
from tests.spark.query_process import QueryProcess

__all__ = ["ehbalance", "storage"]

HUB = "hub"


@pytest.fixture
def hub() -> Iterator[Emulator]:
    """A running emulator with a hub of 8 partitions."""
    with Emulator({HUB: 8}) as running:
        yield running


@pytest.fixture
def options(hub: Emulator) -> dict[str, str]:
    """Options of a query that reads the hub from its first event, alone."""
    return {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}


@pytest.fixture
def shared_options(options: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Options of a query that shares the hub, with short times."""
    return {**options, "leaseTable": str(tmp_path / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}


@pytest.fixture
def owners(tmp_path: Path) -> Callable[[], list[str | None]]:
    """Asks the lease table who owns each partition, in the order of the partitions."""
    store = DeltaStore(str(tmp_path / "leases"))

    def ask() -> list[str | None]:
        return [lease.owner for lease in store.read().leases.values()] if store.exists() else []

    return ask


_PROCESSES: list[QueryProcess] = []


@pytest.fixture(scope="session", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    for process in _PROCESSES:
        process.kill()


def _running(count: int) -> list[QueryProcess]:
    _PROCESSES[:] = [process for process in _PROCESSES if process.alive]
    _PROCESSES.extend(QueryProcess() for _ in range(count - len(_PROCESSES)))
    return _PROCESSES[:count]


@pytest.fixture
def processes() -> list[QueryProcess]:
    """Three processes with Spark, kept from test to test; those that a test has ended are replaced."""
    return _running(3)


@pytest.fixture
def pair() -> list[QueryProcess]:
    """Two of them: a third that a test has ended is not replaced, which takes half a minute."""
    return _running(2)
