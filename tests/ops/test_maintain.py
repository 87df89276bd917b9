"""`ehbalance maintain`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.delta_tables import age_all, change, data_files
from tests.lease_table.store_conformance import ANN, GROUP, filled
from tests.ops.command import Command


def test_table_is_cleaned_up(ehbalance: Command, tmp_path: Path) -> None:
    table = str(tmp_path / "leases")
    with DeltaStore(table) as store:
        filled(store, ANN, owned=("0",))
        store.record([change(1)])
        age_all(table)
        store.write(store.read(), replace(store.read(), lease_duration_ms=60_000))
    assert len(data_files(table)) > 1
    assert ehbalance.succeeds("maintain", table).out == f"Lease table {table} of {GROUP} cleaned up.\n"
    assert len(data_files(table)) == 1


@pytest.mark.parametrize(
    ("table", "options", "code", "error"),
    [
        (None, (), 1, "There is no lease table at "),
        ("dbfs:/leases", (), 2, "Allowed: a storage address, such as"),
        (
            "az://c/leases",
            ("--storage-option", "allow_unsafe_rename=true"),
            2,
            "allow_unsafe_rename cannot be set",
        ),
    ],
)
def test_failed_clean_up_is_an_error(
    ehbalance: Command, tmp_path: Path, table: str | None, options: tuple[str, ...], code: int, error: str
) -> None:
    assert error in ehbalance.fails(code, "maintain", table or tmp_path / "none", *options)
