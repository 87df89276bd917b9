"""Fixtures for tests with real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.spark.query_process import QueryProcess

HUB = "hub"


@pytest.fixture
def hub() -> Iterator[Emulator]:
    """A running emulator with a hub of 8 partitions."""
    with Emulator({HUB: 8}) as running:
        yield running


@pytest.fixture
def options(hub: Emulator) -> dict[str, str]:
    """Options for a query without a lease table that reads the hub from its first event."""
    return {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}


@pytest.fixture
def shared_options(options: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Options for a query that shares the hub, with short intervals."""
    return {**options, "leaseTable": str(tmp_path / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}


@pytest.fixture
def owners(tmp_path: Path) -> Callable[[], list[str | None]]:
    """Reads the owners of all partitions from the lease table, ordered by partition."""
    store = DeltaStore(str(tmp_path / "leases"))

    def read_owners() -> list[str | None]:
        return [lease.owner for lease in store.read().leases.values()] if store.exists() else []

    return read_owners


@pytest.fixture(scope="session")
def _query_processes() -> Iterator[list[QueryProcess]]:
    made: list[QueryProcess] = []
    yield made
    for process in made:
        process.kill()


@pytest.fixture
def processes(_query_processes: list[QueryProcess]) -> Callable[[int], list[QueryProcess]]:
    """Processes with Spark that are reused by later tests; a process that a test ended is replaced, which takes half a
    minute on a busy machine."""

    def running(count: int) -> list[QueryProcess]:
        _query_processes[:] = [process for process in _query_processes if process.alive]
        _query_processes.extend(QueryProcess() for _ in range(count - len(_query_processes)))
        return _query_processes[:count]

    return running
