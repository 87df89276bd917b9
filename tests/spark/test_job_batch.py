"""batch_to_delta: a range beside, and after, what a stream writes exactly once into the same table."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from jobs.batch_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.target import MERGED
from spark_ehbalance.jobs import SettingError, batch_to_delta
from spark_ehbalance.jobs.batch_to_delta import Settings, copy
from tests.spark.conftest import HUB
from tests.spark.tables import held
from tests.spark.test_single_query import fill, run_available

pytestmark = pytest.mark.spark

_BEFORE = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.mark.heavy
def test_a_range_is_there_once_whatever_a_stream_has_written_and_will_write(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    table, source = os.path.relpath(tmp_path / "table"), {"connectionString": options["connectionString"]}

    def stream() -> None:
        def write(df: object, batch: int) -> None:
            once(table)(rows(df), batch)  # type: ignore[arg-type]

        run_available(spark, source | {"startingPosition": '{"*": 5}'}, tmp_path, process=write)

    def batch() -> str:
        now = datetime.now(timezone.utc)
        copy(spark, Settings(table=table, from_=_BEFORE, to=now, source=source), rows)
        *said[:], counted = capsys.readouterr().err.splitlines()
        return counted.partition("Z: ")[2]

    def merged() -> bool:
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/table`").head()
        return detail is not None and MERGED in detail.properties

    fill(hub, 10)
    stream()
    assert batch() == "80 read, 40 written, 40 there already"
    assert not merged(), "the stream has passed all of it, and goes on as before"
    hub.trim(HUB, "3", 2)
    sent = fill(hub, 5)
    assert batch() == "118 read, 40 written, 78 there already"
    assert said[0].startswith("The range begins before what the hub retains of partitions 3 (from number 2 on): ")
    assert merged(), "the stream reads the new events later"
    fill(hub, 1)
    sent |= {(str(partition), 15) for partition in range(8)}
    stream()
    assert held(table) == dict.fromkeys(sent, 1)


def test_events_that_cannot_be_in_the_table_are_no_success(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, insert = {"connectionString": options["connectionString"]}, batch_to_delta.insert  # type: ignore[attr-defined]

    def run(begin: datetime, to: datetime, **more: int) -> None:
        copy(spark, Settings(table=str(tmp_path / "table"), from_=begin, to=to, source=source, **more), rows)

    def enqueued() -> datetime:
        found = hub.partition_state(HUB, "7").last_enqueued_time
        assert found is not None
        return found

    def losing(df: DataFrame, *others: Any) -> tuple[int, int]:
        done = insert(df, *others)
        hub.trim(HUB, "3", 4)
        return done

    fill(hub, 2)
    fill(hub, 3)
    with pytest.raises(SettingError, match=r"to=.* is yet to come"):
        run(_BEFORE, datetime.now(timezone.utc) + timedelta(hours=1))
    with monkeypatch.context() as patched:
        patched.setattr(batch_to_delta, "insert", losing)
        with pytest.raises(AnalysisException, match=r"partition 3: .* but the first"):
            run(_BEFORE, enqueued() + timedelta(milliseconds=1), max_events_per_commit=16)
    hub.delete_hub(HUB)
    hub.add_hub(HUB, 8)
    fill(hub, 7)
    with pytest.raises(TargetError, match="the event hub was recreated"):
        run(_BEFORE, datetime.now(timezone.utc))
