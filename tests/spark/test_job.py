"""The job for spark-submit: which tables it writes. `tests/jobs` has its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.stream_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs import SettingError
from spark_ehbalance.jobs.stream_to_delta import Settings, start
from tests.spark.conftest import HUB

pytestmark = pytest.mark.spark

Made = Callable[..., Settings]


@pytest.fixture
def settings(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> Iterator[Made]:
    """The job's settings for these; the tables are dropped afterwards."""

    def make(table: str) -> Settings:
        return Settings(
            table=table,
            checkpoint_location=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
            source=options,
        )

    yield make
    for table in ("plain", "made"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_events_are_in_the_table(spark: SparkSession, hub: Emulator, settings: Made) -> None:
    hub.append(HUB, "0", [b"a"])
    hub.append(HUB, "1", [b"b"])
    assert start(spark, settings("made"), rows).awaitTermination(120)
    assert sorted(row.body for row in spark.table("made").collect()) == ["a", "b"]


def test_a_table_of_another_format_and_what_is_no_table_are_refused(spark: SparkSession, settings: Made) -> None:
    def refused(line: str, table: str) -> None:
        with pytest.raises(SettingError, match=f"spark.ehbalance.job.table={line}"):
            start(spark, settings(table), rows)

    spark.sql("CREATE TABLE plain (body STRING) USING parquet")
    for table in ("plain", "spark_catalog.default.plain"):
        refused(f"{table} is no Delta table: write to a new one", table)
    for table in ("not there", "nowhere.ops.events", "a-b", "'", "a.b.c.d.e"):
        refused(".* is no path and cannot be looked up", table)
    refused("nowhere.events: there is no database nowhere", "nowhere.events")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT 1 AS a")
    refused("seen is a view", "seen")
