"""Fixtures of the tests with real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.query_process import QueryProcess

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


@pytest.fixture
def processes() -> list[QueryProcess]:
    """Three processes with Spark, kept from test to test; one that a test has ended is replaced."""
    _PROCESSES[:] = [process for process in _PROCESSES if process.alive]
    _PROCESSES.extend(QueryProcess() for _ in range(3 - len(_PROCESSES)))
    return _PROCESSES
