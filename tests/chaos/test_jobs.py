"""The checks of the scenario `jobs`: which results they accept, and which problems they list."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from chaos import jobs
from chaos.hubs import copy_differences
from chaos.jobs import ParseToDelta
from spark_ehbalance import shipped
from spark_ehbalance.emulator import Emulator


def test_each_shipped_job_is_a_case() -> None:
    assert {case.name for case in jobs.CASES} == {path.stem for path in (shipped.folder() / "jobs").glob("*.py")}


def test_a_copy_may_repeat_events_but_not_lose_or_reorder_them() -> None:
    sent = {("a", "0"): [("1",), ("2",), ("3",)]}

    def found(*bodies: str) -> tuple[int, list[str]]:
        return copy_differences(sent, {("a", "2"): [(body,) for body in bodies]})

    assert found("1", "2", "3") == (0, [])
    assert found("1", "2", "1", "2", "3") == (2, [])
    assert found("1", "3", "2", "3") == (1, ["key a: events are too many, or not in order"])
    assert found("1", "2", "3", "4") == (0, ["key a: events are too many, or not in order"])
    assert found("1", "3") == (0, ["key a: 1 events are missing"])
    assert copy_differences(sent, {**sent, ("a", "1"): sent["a", "0"]}) == (0, ["a is in 2 partitions"])


def test_missing_and_repeated_rows_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: Emulator
) -> None:
    monkeypatch.setattr(jobs, "NUMBERS", range(4))
    case = ParseToDelta(tmp_path, emulator)
    numbers = [(str(p), number) for p in range(jobs.PARTITIONS) for number in (1, 2, 3)]
    rows = {"partition": [p for p, _ in numbers], "sequenceNumber": [number for _, number in numbers]}
    rows |= {"id": [f"event {number}" for _, number in numbers], "delay": [number for _, number in numbers]}
    write_deltalake(tmp_path / "table", pa.table(rows))
    write_deltalake(tmp_path / "table", pa.table(rows).slice(0, 1), mode="append")
    assert case.problems() == [
        "1 rows are too many in the table, such as ('0', 1, 'event 1', 1)",
        "4 rows are missing from the rejected one, such as ('0', 0, b'{\"id\": \"event 0')",
    ]
