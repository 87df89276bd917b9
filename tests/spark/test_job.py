"""The job for spark-submit writes its table. `tests/jobs` has its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.stream_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs.stream_to_delta import Settings, start
from tests.spark.conftest import HUB

pytestmark = pytest.mark.spark


def test_events_are_in_the_table(spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path) -> None:
    settings = Settings(
        table="made", checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True}, source=options
    )
    hub.append(HUB, "0", [b"a"])
    hub.append(HUB, "1", [b"b"])
    try:
        assert start(spark, settings, rows).awaitTermination(120)
        assert sorted(row.body for row in spark.table("made").collect()) == ["a", "b"]
    finally:
        spark.sql("DROP TABLE IF EXISTS made")
