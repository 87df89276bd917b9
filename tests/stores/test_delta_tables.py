"""Delta lease tables beside others' files, and made by earlier versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.leases.model import Author, MemberLoad, Pin
from spark_ehbalance.leases.orders import PinTo
from spark_ehbalance.leases.transitions import Checkpoint, Heartbeat
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.delta.table_format import SCHEMA
from spark_ehbalance.values.position import Position
from tests.stores.delta_tables import HOUR_AGO, age, committed
from tests.stores.store_conformance import ANN, GROUP

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


def test_maintaining_removes_old_data_files_that_no_log_knows_and_nothing_else(
    uri: str, mine: DeltaStore, theirs: DeltaStore
) -> None:
    folder, one = Path(uri), "0dab2fc0-bfdc-4e57-aa87-6417aec08108"
    data = [f"{one}.parquet", *(f"part-00000-{one}{end}.parquet" for end in ("-c000.snappy", ".c000.snappy", "-c000"))]
    others = ["notes.txt", "mine.parquet", f"{one}.csv", f"copy of {one}.parquet", "part-00000.parquet", f".{data[0]}"]
    below = [
        "checkpoint/offsets/12",
        "checkpoint/metadata",
        "src/job.py",
        ".git/config",
        *(f"x/{each}" for each in data),
    ]
    new = "1dab2fc0-bfdc-4e57-aa87-6417aec08108.parquet"
    for name in (*data, *others, *below, new):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    with DeltaStore(f"{uri}/nested") as nested:
        nested.create(GROUP)
        for each in (nested, mine, nested, mine):
            each.write(each.read(), each.read())
    age((file for file in folder.rglob("*") if file.name != new), HOUR_AGO)
    mine.write(mine.read(), mine.read())
    nested_files, before = sorted((folder / "nested").rglob("*")), mine.read()
    mine.maintain()
    assert theirs.read().leases == before.leases
    live = {uri.rsplit("/", 1)[1] for uri in DeltaTable(uri).file_uris()}
    assert {file.name for file in folder.iterdir() if file.is_file()} == {*others, new, *live}
    assert all((folder / name).exists() for name in below)
    assert sorted((folder / "nested").rglob("*")) == nested_files
