"""The demo's flights, and their count in a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ehbalance.demo.flights import Count, count, load


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        (["a", "b", "c"], Count(3, 0, 0)),
        (["c", "a"], Count(2, 1, 0)),
        (["a", "b", "b", "b", "c"], Count(5, 0, 2)),
        (["a", "a", "b"], Count(3, 1, 1)),
        (["a", "b", "c", "unknown"], Count(4, 0, 1)),
    ],
    ids=["all", "one missing", "one three times", "duplicates do not make up for missing events", "never sent"],
)
def test_missing_and_surplus_rows_are_counted(tmp_path: Path, bodies: list[str], expected: Count) -> None:
    table = str(tmp_path)
    for part in (bodies[::2], bodies[1::2]):
        write_deltalake(table, pa.table({"body": part}), mode="append")
    assert count(table, ["a", "b", "c"]) == expected


def test_flights_load_without_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    """New environments have no pkg_resources."""
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    assert len(set(load())) == 336_776
