"""The job for spark-submit: which tables it writes, and how it goes on with one of Delta's own sink. `tests/jobs` has
its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from jobs.stream_to_delta import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs import SettingError
from spark_ehbalance.jobs.program import format_of
from spark_ehbalance.jobs.stream_to_delta import Settings, start
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Made = Callable[..., Settings]


@pytest.fixture
def settings(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> Iterator[Made]:
    """The job's settings for these; the tables are dropped afterwards."""

    def make(table: str, format: str = "delta", *, exactly_once: bool = True, **source: str) -> Settings:
        trigger = {"availableNow": True} if exactly_once else {"processingTime": "0 seconds"}
        checkpoint = str(tmp_path / "checkpoint")
        return Settings(
            table=table,
            format=format,
            checkpoint_location=checkpoint,
            trigger=trigger,
            exactly_once=exactly_once,
            source=options | source,
        )

    yield make
    for table in ("plain", "made"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_a_table_of_files_with_a_lease_table_and_what_is_no_table_are_refused(
    spark: SparkSession, settings: Made
) -> None:
    def refused(line: str, table: str, **source: str) -> None:
        with pytest.raises(SettingError, match=f"spark.ehbalance.job.table={line}"):
            start(spark, settings(table, **source), rows)

    spark.sql("CREATE TABLE plain (body STRING) USING parquet")
    assert format_of(spark, "plain") == "parquet"
    refused("plain is of the format parquet, which cannot be written exactly once", "plain")
    for table in ("plain", "spark_catalog.default.plain"):
        refused(f"{table} is of the format parquet, and .*leaseTable is set", table, leaseTable="/data/leases")
    for table in ("not there", "nowhere.ops.events", "a-b", "'", "a.b.c.d.e"):
        refused(".* is no path and cannot be looked up", table)
    refused("nowhere.events: there is no database nowhere", "nowhere.events")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT 1 AS a")
    refused("seen is a view", "seen")


def test_a_job_goes_on_exactly_once_after_one_with_deltas_own_sink(
    spark: SparkSession, hub: Emulator, settings: Made, tmp_path: Path
) -> None:
    """The earlier one crashes after the sink and before Spark has noted the batch, so that Spark runs it again."""
    noted = tmp_path / "checkpoint" / "commits"
    leases = {"leaseTable": str(tmp_path / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}

    def bodies() -> list[str]:
        return sorted(row.body for row in spark.table("made").collect())

    at_least_once = settings("made", exactly_once=False, **leases)
    earlier = start(spark, at_least_once, rows)
    hub.append(HUB, "0", [b"a"])
    wait_until(lambda: (noted / "0").exists(), "the first batch has ended")
    (noted / "1").mkdir()
    hub.append(HUB, "0", [b"b"])
    with pytest.raises(StreamingQueryException):
        earlier.awaitTermination(120)
    (noted / "1").rmdir()
    assert bodies() == ["a", "b"]
    hub.append(HUB, "0", [b"c"])
    hub.append(HUB, "1", [b"d"])
    exactly_once = settings("made", **leases)
    query = start(spark, exactly_once, rows)
    assert query.awaitTermination(120)
    assert query.recentProgress[0].batchId == 1, "it was run again"
    assert bodies() == ["a", "b", "c", "d"]
