from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from chaos.storage.azurite import azurite, make_container, missing_requirement
from chaos.storage.proxy import StorageProxy
from tests.azure_storage.tables import Table
from tests.lease_table.store_conformance import ANN, BOB, filled
from tests.ops.conftest import ehbalance

__all__ = ["ehbalance"]


@pytest.fixture(scope="session")
def storage() -> Iterator[str]:
    """The address of an Azurite server."""
    require_azurite()
    with azurite() as address:
        yield address


def require_azurite() -> None:
    """Skip the test if Azurite is missing, or fail if it is required."""
    if problem := missing_requirement():
        if os.environ.get("EHBALANCE_REQUIRE_AZURITE"):
            pytest.fail(problem)
        pytest.skip(problem)


@pytest.fixture(scope="session")
def all_requests(storage: str) -> Iterator[StorageProxy]:
    with StorageProxy(storage) as proxy:
        yield proxy


@pytest.fixture
def proxy(all_requests: StorageProxy) -> Iterator[StorageProxy]:
    """A proxy in front of Azurite, initially without faults."""
    yield all_requests
    all_requests.disturb()
    all_requests.skew(0.0)


@pytest.fixture
def new_table(storage: str, proxy: StorageProxy) -> Table:
    """A table that does not exist yet, in its own container."""
    container = uuid.uuid4().hex
    make_container(storage, container)
    return Table(container, storage, proxy.address)


@pytest.fixture
def table(new_table: Table) -> Table:
    """A table with two members and two partitions; ann owns partition 0."""
    with new_table.undisturbed() as store:
        filled(store, ANN, BOB, owned=("0",))
    return new_table
