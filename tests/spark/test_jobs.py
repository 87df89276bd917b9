"""The jobs for spark-submit write the right rows exactly once. `tests/jobs` tests their settings."""

from __future__ import annotations

import os
import re
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from jobs import parse_to_delta as parse_program
from jobs import stream_to_delta as stream_program
from jobs.batch_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.target import MERGED
from spark_ehbalance.jobs import PREFIX, SettingError, batch_to_delta, parse_to_delta, stream_to_delta
from spark_ehbalance.jobs.parsing import Parser
from tests.raising import raises
from tests.spark.conftest import HUB
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill, run_available

pytestmark = pytest.mark.spark

_BEFORE = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def common(options: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    """Settings shared by the streaming jobs."""
    checkpoint = str(tmp_path / "checkpoint")
    return {"checkpoint_location": checkpoint, "trigger": {"availableNow": True}, "source": options}


def test_stream_to_delta_writes_every_event_once(spark: SparkSession, hub: Emulator, common: dict[str, Any]) -> None:
    settings = stream_to_delta.Settings(table="made", **common)
    hub.append(HUB, "0", [b"a"])
    hub.append(HUB, "1", [b"b"])
    try:
        assert stream_to_delta.start(spark, settings, stream_program.rows).awaitTermination(120)
        assert sorted(row.body for row in spark.table("made").collect()) == ["a", "b"]
    finally:
        spark.sql("DROP TABLE IF EXISTS made")


# --- batch_to_delta ------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_batch_and_stream_together_write_every_event_once(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []
    table, source = os.path.relpath(tmp_path / "table"), {"connectionString": options["connectionString"]}

    def stream() -> None:
        def write(df: DataFrame, batch: int) -> None:
            once(table)(rows(df), batch)

        run_available(spark, source | {"startingPosition": '{"*": 5}'}, tmp_path, process=write)

    def batch() -> str:
        now = datetime.now(timezone.utc)
        batch_to_delta.copy(spark, batch_to_delta.Settings(table=table, from_=_BEFORE, to=now, source=source), rows)
        *printed[:], counted = capsys.readouterr().err.splitlines()
        return counted.partition("Z: ")[2]

    def merged() -> bool:
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/table`").head()
        return detail is not None and MERGED in detail.properties

    fill(hub, 10)
    stream()
    assert batch() == "80 read, 40 written, 40 already present"
    assert not merged(), "the stream has passed all of it, and continues as before"
    hub.trim(HUB, "3", 2)
    sent = fill(hub, 5)
    assert batch() == "118 read, 40 written, 78 already present"
    assert printed[0].startswith(
        "The hub no longer retains the beginning of the range in partitions 3 (from sequence number 2): "
    )
    assert merged(), "the stream reads the new events later"
    fill(hub, 1)
    sent |= {(str(partition), 15) for partition in range(8)}
    stream()
    assert events_in(table) == dict.fromkeys(sent, 1)


def test_batch_fails_if_events_are_missing_from_the_table(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, insert = {"connectionString": options["connectionString"]}, batch_to_delta.insert  # type: ignore[attr-defined]

    def run(to: datetime) -> None:
        settings = batch_to_delta.Settings(
            table=str(tmp_path / "table"), from_=_BEFORE, to=to, source=source, max_events_per_commit=16
        )
        batch_to_delta.copy(spark, settings, rows)

    def losing(df: DataFrame, *others: Any) -> tuple[int, int]:
        done = insert(df, *others)
        hub.trim(HUB, "3", 4)
        return done

    fill(hub, 2)
    fill(hub, 3)
    with raises(SettingError, "EHB_OPTION_INVALID", option=f"{PREFIX}to", allowed=re.compile("in the past")):
        run(datetime.now(timezone.utc) + timedelta(hours=1))
    monkeypatch.setattr(batch_to_delta, "insert", losing)
    last = hub.partition_state(HUB, "7").last_enqueued_time
    assert last is not None
    with pytest.raises(AnalysisException, match=r"\[EHB_EVENTS_LOST\] Partition 3: .* from sequence number 1 on"):
        run(last + timedelta(milliseconds=1))


# --- parse_to_delta ------------------------------------------------------------------------------------------------

#: (body, reason for its rejection); `tests/jobs/test_json_values.py` covers all values.
_BODIES = {
    b'{"id": "a", "at": {"x": 1}}': None,
    b'{"id": "b", "delay": "late"}': "field delay is not a valid int: late",
    b'{"id": null}': "field id is missing or null, but NOT NULL in the schema",
    b"\xff{}": "not UTF-8",
    b'{"id": "f", "day": "1582-10-14", "more": true}\r\n': None,
}


@pytest.mark.heavy
def test_unparsable_events_go_to_their_own_table_even_after_a_crash_between_the_writes(
    spark: SparkSession, hub: Emulator, common: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse_to_delta.Settings(
        table=str(tmp_path / "table"),
        rejected=str(tmp_path / "rejected"),
        schema="id STRING NOT NULL, delay INT, at STRUCT<x: INT>, day DATE",
        **common,
    )
    write_once = parse_to_delta.write_once  # type: ignore[attr-defined]

    def crash(df: Any, number: int, table: str) -> None:
        if table == settings.rejected:
            raise RuntimeError("the driver dies")
        write_once(df, number, table)

    def found(table: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    hub.append(HUB, "0", list(_BODIES))
    with monkeypatch.context() as patched:
        patched.setattr(parse_to_delta, "write_once", crash)
        with pytest.raises(StreamingQueryException):
            parse_to_delta.start(spark, settings, parse_program.rows).awaitTermination(120)
    assert len(found(settings.table, "id")) == 2
    hub.append(HUB, "1", [b'{"id": "g", "delay": 5}', b"x"])
    assert parse_to_delta.start(spark, settings, parse_program.rows).awaitTermination(120)
    values = [("a", None, {"x": 1}, None), ("f", None, None, date(1582, 10, 14)), ("g", 5, None, None)]
    assert found(settings.table, "id", "delay", "at", "day") == values
    rejected = [(body, why) for body, why in _BODIES.items() if why] + [(b"x", "not a JSON object")]
    assert found(settings.rejected, "body", "reason") == sorted(rejected, key=repr)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("id STRIN", "'id STRIN' (["),
        ("Partition INT", "field names other than partition,"),
        ("x ARRAY<VARIANT>", "JSON cannot be parsed as variant; use STRING"),
        ("x STRUCT<id: INT, ID: INT>", "field ID occurs twice; Delta ignores case"),
    ],
)
def test_invalid_schema_is_refused(spark: SparkSession, schema: str, problem: str) -> None:
    with raises(SettingError, "EHB_OPTION_INVALID", option=f"{PREFIX}schema") as caught:
        Parser(spark, schema)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
