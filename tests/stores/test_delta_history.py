"""The history's table, which others may change while members append to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from spark_ehbalance.stores.delta.history import History
from tests.stores.delta_tables import change


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
def test_nothing_appended_is_lost_by_what_others_do_with_the_history(tmp_path: Path, what: str) -> None:
    history = History(str(tmp_path / "leases"), {})
    for epoch in range(3):
        history.append([change(epoch)])
    CHANGES[what](str(tmp_path / "leases_history"))
    for epoch in range(3, 6):
        history.append([change(epoch)])
    before = {"gone": set(), "rows removed": {1, 2}}.get(what, {0, 1, 2})
    assert {each.epoch for each in history.read()} == before | {3, 4, 5}
    assert len(history.read()) == len(before) + 3
