"""The lease tables in a folder are found, whatever else is there."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.finding import lease_tables, parse_folder
from tests.lease_table.delta_tables import change
from tests.lease_table.store_conformance import ANN, GROUP, filled


def make(table: Path) -> Path:
    with DeltaStore(str(table)) as store:
        filled(store, ANN, owned=("0",))
        store.record([change(1)])
    return table


def found(folder: Path) -> list[str]:
    return [os.path.relpath(each, folder) for each in lease_tables(str(folder), {})]


def test_tables_are_found_at_any_depth_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/below/it", "with space"):
        make(tmp_path / name)
    with DeltaStore(str(tmp_path / "new")) as store:
        store.create(GROUP)
    write_deltalake(tmp_path / "events", pa.table({"day": ["1", "2"], "x": [1, 2]}), partition_by=["day"])
    for name in ("offsets", "commits", "state/0"):
        (tmp_path / "checkpoints/query" / name).mkdir(parents=True)
    make(tmp_path / "checkpoints/query/state/0/leases")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "a['").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    assert found(tmp_path) == ["a", "b", "deep/below/it", "new", "with space"]
    assert found(tmp_path / "a") == ["."]
    assert found(tmp_path / "events") == []


def test_a_table_whose_files_another_program_has_joined_is_found(tmp_path: Path) -> None:
    table = make(tmp_path / "leases")
    rows = DeltaTable(table).to_pyarrow_table()
    write_deltalake(table, rows, mode="overwrite")
    for each in table.glob("lease-*.parquet"):
        each.unlink()
    assert found(tmp_path) == ["leases"]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"the folder .*/no could not be listed"):
        found(tmp_path / "no")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("az://Container/", "az://container"),
        ("az://c/x//y/", "az://c/x/y"),
        ("/data/leases/", "/data/leases"),
        ("https://a.blob.core.windows.net/c", "https://a.blob.core.windows.net/c"),
    ],
)
def test_a_folder_may_be_a_whole_container(text: str, location: str) -> None:
    assert parse_folder(text) == location


@pytest.mark.parametrize("text", ["", "dbfs:/x", "~/x", "az://", "ftp://x/y", "main.ops.leases"])
def test_a_folder_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an? |^a folder below"):
        parse_folder(text)
