"""parse_to_delta: every event is in one of two tables, once, also after a crash between the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.parse_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs import SettingError, parse_to_delta
from spark_ehbalance.jobs.parse_to_delta import Settings, start
from spark_ehbalance.jobs.parsing import Parser
from tests.jobs.test_json_values import BODIES, SCHEMA, parsed, same
from tests.spark.conftest import HUB

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

_BODIES = {
    b'{"id": "a", "at": {"x": 1}}': None,
    b'{"id": "b", "delay": "late"}': "field delay is no int: late",
    b'{"id": "c", "at": {"x": "far"}}': "field at.x is no int: far",
    b'{"id": null}': "field id is missing or null, and NOT NULL in the schema",
    b'[{"id": "d"}]': "no JSON object",
    b'{"id": "e", ': "no JSON object",
    b"\xff{}": "no UTF-8",
    b'{"id": "g"}\n{"id": "h"}': "more than a JSON object",
    b'{"id": "g"}, "h"': "more than a JSON object",
    b'{"id": "f", "delay": 5, "more": true}\r\n': None,
}


def test_what_cannot_be_parsed_is_in_a_table_of_its_own_with_the_reason(
    spark: SparkSession,
    hub: Emulator,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(
        table=str(tmp_path / "table"),
        rejected=str(tmp_path / "rejected"),
        schema="id STRING NOT NULL, delay INT, at STRUCT<x: INT>",
        checkpoint_location=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
        source=options,
    )
    write_once = parse_to_delta.write_once  # type: ignore[attr-defined]

    def crash(df: Any, number: int, table: str) -> None:
        if table == settings.rejected:
            raise RuntimeError("the driver dies")
        write_once(df, number, table)

    def held(table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    hub.append(HUB, "0", list(_BODIES))
    with monkeypatch.context() as patched:
        patched.setattr(parse_to_delta, "write_once", crash)
        with pytest.raises(StreamingQueryException):
            start(spark, settings, rows).awaitTermination(120)
    assert len(held(settings.table, "id")) == 2
    hub.append(HUB, "1", [b'{"id": "g"}', b"x"])
    assert start(spark, settings, rows).awaitTermination(120)
    values = [("a", None, {"x": 1}), ("f", 5, None), ("g", None, None)]
    assert held(settings.table, "id", "delay", "at") == values
    rejected = [(body, why) for body, why in _BODIES.items() if why] + [(b"x", "no JSON object")]
    assert held(settings.rejected, "body", "reason") == sorted(rejected, key=repr)


def test_what_delta_holds_and_spark_writes_as_json_again_is_what_was_sent(spark: SparkSession, tmp_path: Path) -> None:
    bodies = {'{"at": "0001-01-01T00:00:00Z"}', '{"day": "1582-10-14"}', '{"local": "9999-12-31T23:59:59.999999"}'}

    @hypothesis_settings(max_examples=1000, deadline=None)
    @given(BODIES)
    def collect(body: str) -> None:
        bodies.add(body)

    collect()
    parser = Parser(spark, ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in SCHEMA))
    events = spark.createDataFrame([(body, bytearray(body.encode())) for body in bodies], "sent STRING, body BINARY")
    parser.parse(events).write.format("delta").save(str(tmp_path / "table"))
    time = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    held = spark.read.format("delta").load(str(tmp_path / "table"))
    written = F.to_json("value", {"timestampFormat": f"{time}XXX", "timestampNTZFormat": time, "timeZone": "UTC"})
    rows = held.select("sent", "reason", F.col("value").isNull(), written).collect()
    assert {row.sent for row in rows} == bodies
    stored = 0
    for sent, reason, is_null, again in rows:
        assert (reason is None) != is_null
        if reason is None:
            assert same(SCHEMA, parsed(sent), parsed(again)), (sent, again)
            stored += 1
    assert 100 < stored < len(bodies) - 100


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("id STRIN", "schema is no schema: ["),
        ("Partition INT", "schema has a field partition, which is the name of a column of the event"),
        (
            "x ARRAY<VARIANT>",
            "schema is no schema: JSON is not read into variant: take STRING, which holds any JSON value as text",
        ),
    ],
)
def test_a_wrong_schema_is_refused(spark: SparkSession, schema: str, error: str) -> None:
    with pytest.raises(SettingError) as refusal:
        Parser(spark, schema)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).removeprefix("spark.ehbalance.job.").startswith(error)
