from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.store_conformance import ANN, BOB, filled
from tests.ops.conftest import ehbalance

__all__ = ["ehbalance"]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The location of a Delta lease table with two members and two partitions; ann owns partition 0."""
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as store:
        filled(store, ANN, BOB, owned=("0",))
    return uri


@pytest.fixture
def mine(uri: str) -> Iterator[DeltaStore]:
    with DeltaStore(uri) as store:
        yield store


@pytest.fixture
def theirs(uri: str) -> Iterator[DeltaStore]:
    """Another handle on the same table."""
    with DeltaStore(uri) as store:
        yield store
