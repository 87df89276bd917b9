"""Delta lease tables beside others' files, made by earlier versions, and read by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.leases.model import Author, MemberLoad, Pin
from spark_ehbalance.leases.orders import PinTo
from spark_ehbalance.leases.transitions import Checkpoint, Drain, Heartbeat, RequestHandover
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.delta.table_format import SCHEMA
from spark_ehbalance.values.position import Position
from tests.stores.delta_tables import HOUR_AGO, age, committed
from tests.stores.store_conformance import ANN, BOB, GROUP

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


# --- other readers -----------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_the_same_rows(uri: str, mine: DeltaStore, theirs: DeltaStore, spark: Any) -> None:
    ask = RequestHandover(by=BOB, at_ms=3, partition="0", epoch=1, to="bob", timeout_ms=30_000)
    progress = Checkpoint(by=ANN, at_ms=2, partition="0", epoch=1, position=Position(2**40, "4294967296"))
    snapshot = committed(mine, ask, progress, Drain(by=BOB, at_ms=4, member="bob"))
    for _ in range(60):  # beyond a checkpoint of the log
        snapshot = committed(mine, Heartbeat(by=ANN, at_ms=5), base=snapshot)
    assert theirs.read() == snapshot

    table = spark.read.format("delta").load(uri)
    columns = ["kind", "id", "owner", "epoch", "renewal", "sequence_number", "offset", "next_owner", "state", "joined"]
    rows = {(row.kind, row.id): row for row in table.select(*columns).collect()}

    assert table.columns == SCHEMA.names
    ids = {("partition", "0"), ("partition", "1"), ("member", "ann"), ("member", "bob"), ("table", "ann-1")}
    assert set(rows) == ids
    for partition, lease in snapshot.leases.items():
        row = rows["partition", partition]
        assert (row.owner, row.epoch, row.renewal) == (lease.owner, lease.epoch, lease.renewal)
        assert lease.checkpoint is not None
        assert (row.sequence_number, row.offset) == (lease.checkpoint.sequence_number, lease.checkpoint.offset)
        assert row.next_owner == (lease.handover and lease.handover.to)
    for id, member in snapshot.members.items():
        row = rows["member", id]
        assert (row.joined, row.renewal, row.state) == (member.joined, member.renewal, member.state.value)
    millis = table.selectExpr("id", "unix_millis(renewed_at) AS at").where("kind = 'member'").collect()
    assert {row.id: row["at"] for row in millis} == {"ann": 5, "bob": 1}
