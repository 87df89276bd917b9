"""The history table, which others can change while members append to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.history import History
from tests.lease_table.delta_tables import change


def _optimize(table: str) -> None:
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


CHANGES: dict[str, Callable[[str], object]] = {
    "a column": lambda table: DeltaTable(table).alter.add_columns([Field("note", PrimitiveType("string"))]),
    "a property": lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
    "a description": lambda table: DeltaTable(table).alter.set_table_description("ours"),
    "rows removed": lambda table: DeltaTable(table).delete("epoch < 1"),
    "optimized": _optimize,
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("what", CHANGES)
def test_appends_survive_foreign_changes_of_the_history(tmp_path: Path, what: str) -> None:
    history, other = History(str(tmp_path / "leases"), {}), History(str(tmp_path / "leases"), {})
    assert other.follow(0) == []
    for epoch in range(3):
        history.append([change(epoch)])
    assert {change.epoch for change in other.follow(0)} == {0, 1, 2}
    CHANGES[what](str(tmp_path / "leases_history"))
    for epoch in range(3, 6):
        history.append([change(epoch)])
    before = {"gone": set(), "rows removed": {1, 2}}.get(what, {0, 1, 2})
    assert {change.epoch for change in history.read()} == before | {3, 4, 5}
    assert len(history.read()) == len(before) + 3
    assert {change.epoch for change in other.follow(0)} >= {3, 4, 5}
    assert other.follow(0) == []


def test_history_with_a_different_column_type_is_unavailable(tmp_path: Path) -> None:
    history = History(str(tmp_path / "leases"), {})
    history.append([change(1)])
    table = DeltaTable(str(tmp_path / "leases_history"))
    rows = table.to_pyarrow_table()
    changed = rows.set_column(rows.schema.get_field_index("by"), "by", pa.array([1], pa.int32()))
    write_deltalake(table, changed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(StoreUnavailableError):
        history.append([change(2)])


def test_follow_reads_only_new_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, other = History(str(tmp_path / "leases"), {}), History(str(tmp_path / "leases"), {})
    for epoch in range(5):
        history.append([change(epoch)])
    read, parquet = list[str](), Folder.parquet

    def counted(folder: Folder, name: str, schema: pa.Schema) -> pa.Table:
        read.append(name)
        return parquet(folder, name, schema)

    monkeypatch.setattr(Folder, "parquet", counted)
    assert {change.epoch for change in other.follow(0)} == {0, 1, 2, 3, 4}
    read.clear()
    history.append([change(5), change(6)])
    assert {change.epoch for change in other.follow(0)} == {5, 6}
    assert len(read) == 1
    assert other.follow(0) == []
    DeltaTable(str(tmp_path / "leases_history")).optimize.compact()
    assert len(other.follow(0)) == 7, "of joined files all changes are returned again"
    late = History(str(tmp_path / "leases"), {})
    assert late.follow(time.time_ns() // 1_000_000 + 60_000) == [], "older changes were not requested"
    history.append([change(7)])
    assert [change.epoch for change in late.follow(0)] == [7]
