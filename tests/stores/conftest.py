from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.leases.transitions import AddPartitions, Join
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.stores.delta_tables import committed
from tests.stores.store_conformance import ANN, BOB, GROUP, claim


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The location of a Delta lease table with two members and two partitions; ann owns partition 0."""
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as store:
        store.create(GROUP)
        joins = [Join(by=ANN, at_ms=1), Join(by=BOB, at_ms=1)]
        add = AddPartitions(by=ANN, at_ms=1, partitions=("0", "1"), checkpoint=Position(-1))
        committed(store, *joins, add, claim(ANN, "0"))
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
