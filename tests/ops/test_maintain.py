"""`ehbalance maintain`: one lease table, or all of a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.ops import maintain as module
from tests.lease_table.delta_tables import age_all, change, data_files
from tests.lease_table.store_conformance import ANN, GROUP, filled
from tests.ops.command import Command


def make(table: Path) -> Path:
    """A lease table and a history, with files that can be cleaned up."""
    with DeltaStore(str(table)) as store:
        filled(store, ANN, owned=("0",))
        store.record([change(1)])
        age_all(str(table))
        store.write(store.read(), replace(store.read(), lease_duration_ms=60_000))
    assert len(data_files(str(table))) > 1
    return table


def damage(table: Path) -> None:
    for each in (table / "_delta_log").iterdir():
        each.write_bytes(b"")


def test_every_table_is_cleaned_up_whatever_is_wrong_with_others(
    ehbalance: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, damaged, failing = make(tmp_path / "deep/c"), make(tmp_path / "b"), make(tmp_path / "a")
    damage(damaged)
    open_store = module.open_store  # type: ignore[attr-defined]

    def opened(location: str, options: Any) -> Any:
        if location == str(failing):
            raise RuntimeError("x" * 10_000)
        return open_store(location, options)

    monkeypatch.setattr(module, "open_store", opened)
    outcome = ehbalance("maintain", tmp_path)
    assert outcome.code == 1
    first, second, third = outcome.out.splitlines()
    assert re.fullmatch(f"{failing} was not cleaned up: RuntimeError: x{{500}}", first)
    assert second.startswith(f"{damaged} was not cleaned up: the lease table at {damaged} could not be opened: ")
    assert "If the storage works, the log is damaged." in second
    assert third.startswith(f"{good}, of {GROUP}, was cleaned up in ")
    assert outcome.err == "Error: 2 of 3 lease tables could not be cleaned up\n"
    assert len(data_files(str(good))) == 1


@pytest.mark.parametrize(
    ("folder", "options", "code", "error"),
    [
        (None, (), 1, "there is no lease table in "),
        ("dbfs:/leases", (), 2, "FOLDER='dbfs:/leases' is wrong: allowed is an address that does not"),
        ("az://leases", ("--storage-option", "allow_unsafe_rename=true"), 2, "allow_unsafe_rename is set"),
    ],
)
def test_a_folder_that_cannot_be_maintained_is_an_error(
    ehbalance: Command, tmp_path: Path, folder: str | None, options: tuple[str, ...], code: int, error: str
) -> None:
    assert error in ehbalance.fails(code, "maintain", folder or tmp_path, *options)
