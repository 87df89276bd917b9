"""Delta lease tables that were made by earlier versions."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.leases.model import Author, MemberLoad, Pin
from spark_ehbalance.leases.orders import PinTo
from spark_ehbalance.leases.transitions import Checkpoint, Heartbeat
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.delta.table_format import SCHEMA
from spark_ehbalance.values.position import Position
from tests.stores.delta_tables import committed
from tests.stores.store_conformance import ANN

OPERATOR = Author("operator", "")

#: What every table has had from the beginning.
FIRST_COLUMNS = SCHEMA.names[: SCHEMA.names.index("pinned_to")]


@pytest.fixture
def old_uri(uri: str) -> str:
    """A lease table with the columns that the first version had."""
    rows = DeltaTable(uri).to_pyarrow_table().select(FIRST_COLUMNS)
    write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite")
    assert columns(uri) == FIRST_COLUMNS
    return uri


def columns(uri: str) -> list[str]:
    return [field.name for field in DeltaTable(uri).schema().fields]


def test_an_old_table_is_read_and_written_and_maintaining_adds_the_new_columns(
    old_uri: str, mine: DeltaStore, theirs: DeltaStore
) -> None:
    pin = PinTo(by=OPERATOR, at_ms=1, partition="0", to="ann", timeout_ms=1, why="so")
    load = MemberLoad(1.0, 2.0, 3.0, 0.5)

    def write(position: int) -> None:
        progress = Checkpoint(by=ANN, at_ms=1, partition="0", epoch=1, position=Position(position))
        assert committed(mine, Heartbeat(by=ANN, at_ms=1, load=load), progress) == theirs.read()

    assert (mine.read().leases["0"].owner, mine.read().leases["0"].pin) == ("ann", None)
    write(1)
    committed(mine, pin)
    before = theirs.read()
    assert before.leases["0"].pin == Pin("ann", OPERATOR.id, "so")
    assert before.members["ann"].load == load
    theirs.maintain()
    assert columns(old_uri) == SCHEMA.names
    after = theirs.read()
    assert (after.leases, after.members) == (before.leases, before.members)
    theirs.maintain()
    assert theirs.read().version == after.version, "no columns are added twice"
    write(2)
    rows = DeltaTable(old_uri).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["pinned_to"] for row in rows if row["kind"] == "partition"} == {"0": "ann", "1": None}
