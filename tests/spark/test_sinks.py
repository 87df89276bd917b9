"""Which sinks queries that share may write to: Spark's file sink loses rows, in silence."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import jobs.stream_to_delta as job
import spark_ehbalance
from spark_ehbalance.demo.processes import start_job
from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB
from tests.spark.test_sharing import Owners, shares
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

FILES = ("csv", "json", "orc", "parquet", "text")

ENVIRONMENT = {job.SECRET: "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=hub"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(job.SECRET, ENVIRONMENT[job.SECRET])


@pytest.fixture
def stopped(spark: SparkSession) -> Iterator[None]:
    """Stops all queries after the test, and drops the README's table."""
    yield
    for query in spark.streams.active:
        spark_ehbalance.stop(query, 10)
    spark.sql("DROP TABLE IF EXISTS flights")


# --- the README's example of a real hub --------------------------------------------------------------------------


@pytest.mark.usefixtures("stopped")
def test_the_readmes_example_started_twice_loses_nothing(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], owners: Owners, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    example = next(block for block in blocks if "fullyQualifiedNamespace" in block)
    key = shared_options["connectionString"]
    for old, new in {
        '"fullyQualifiedNamespace", "NAMESPACE.servicebus.windows.net"': f'"connectionString", "{key}"',
        '"eventHubName", "flights"': f'"eventHubName", "{HUB}"',
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/leases/flights": shared_options["leaseTable"],
        "/checkpoints/job-1": str(tmp_path / "job-NUMBER"),
    }.items():
        assert old in example
        example = example.replace(old, new)
    for number in "12":
        exec(example.replace("NUMBER", number), {})
        wait_until(lambda: spark.catalog.tableExists("flights"), "the table is there", timeout=120)
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4", timeout=120)

    def read() -> list[tuple[str, int]]:
        rows = spark.table("flights").select("partition", "sequenceNumber").collect()
        return sorted((row.partition, row.sequenceNumber) for row in rows)

    sent, by_owner = set(), owners()
    # One query after the other, so that the second's batch has a number that the first has written already.
    for owner in sorted({owner for owner in by_owner if owner}):
        for partition in (str(number) for number in range(8) if by_owner[number] == owner):
            hub.append(HUB, partition, [b"event"])
            sent.add((partition, 0))
        wait_until(lambda: set(read()) >= sent, "every event is in the table", timeout=120)
    assert read() == sorted(sent)
    assert len(spark.streams.active) == 2


# --- the job ---------------------------------------------------------------------------------------------------


def conf(**more: str) -> dict[str, str]:
    return (
        {"spark.ehbalance.job.table": "/data/events", "spark.ehbalance.job.checkpointLocation": "/data/c"}
        | {f"spark.ehbalance.job.{name.replace('_', '.')}": value for name, value in more.items()}
        | {"spark.ehbalance.job.trigger": "1 s"}
    )


@pytest.mark.parametrize("name", [*FILES, "avro", "xml", "PARQUET"])
def test_the_job_refuses_a_file_sink_with_a_lease_table(name: str) -> None:
    with pytest.raises(job.SettingError) as refusal:
        job.Settings.read(conf(format=name, source_leaseTable="/data/leases"), ENVIRONMENT)
    assert str(refusal.value) == (
        f"spark.ehbalance.job.table=/data/events is of the format {name}, and spark.ehbalance.job.source.leaseTable is "
        "set: queries that write files into one folder lose rows in silence; use the format delta, or leave the lease "
        "table out"
    )
    assert job.Settings.read(conf(format=name), ENVIRONMENT).format == name, "one query alone may write files"


def test_the_job_writes_delta_if_nothing_is_said() -> None:
    assert job.Settings.read(conf(source_LEASETABLE="/data/leases"), ENVIRONMENT).format == "delta"


@pytest.mark.parametrize("name", ["org.apache.spark.sql.parquet", "par quet", "parquet'"])
def test_a_wrong_format_is_named(name: str) -> None:
    with pytest.raises(
        job.SettingError, match=r"spark.ehbalance.job.format=.* is wrong: allowed is a format's short name"
    ):
        job.Settings.read(conf(format=name), ENVIRONMENT)


@pytest.mark.parametrize("name", FILES)
def test_the_job_refuses_a_catalogs_table_of_files_with_a_lease_table(spark: SparkSession, name: str) -> None:
    spark.sql("DROP TABLE IF EXISTS plain")
    spark.sql(f"CREATE TABLE plain (body STRING) USING {name}")
    job.check_table(spark, job.Settings.read(conf(table="plain", format=name), ENVIRONMENT))
    with pytest.raises(job.SettingError, match=f"table=plain is of the format {name}, which cannot be written exactly"):
        job.check_table(spark, job.Settings.read(conf(table="plain"), ENVIRONMENT))
    for table in ("plain", "default.plain", "spark_catalog.default.plain"):
        shared = job.Settings.read(conf(table=table, source_leaseTable="/data/leases"), ENVIRONMENT)
        with pytest.raises(job.SettingError, match=f"table={table} is of the format {name}, and .*leaseTable is set"):
            job.check_table(spark, shared)


@pytest.mark.parametrize("table", ["not there", "nowhere.ops.events", "a-b", "'", "a.b.c.d.e"])
def test_a_table_that_cannot_be_looked_up_is_named(spark: SparkSession, table: str) -> None:
    settings = job.Settings.read(conf(table=table, source_leaseTable="/data/leases"), ENVIRONMENT)
    with pytest.raises(job.SettingError, match=r"spark.ehbalance.job.table=.* is no path and cannot be looked up"):
        job.check_table(spark, settings)


def test_a_view_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT 1 AS a")
    with pytest.raises(job.SettingError, match="table=seen is a view"):
        job.check_table(spark, job.Settings.read(conf(table="seen"), ENVIRONMENT))


@pytest.mark.usefixtures("stopped")
def test_a_job_goes_on_exactly_once_after_one_of_an_earlier_version_with_deltas_own_sink(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    """The earlier one crashes after the sink and before Spark has noted the batch, so that Spark runs it again."""
    spark.sql("DROP TABLE IF EXISTS made")
    checkpoint, noted = tmp_path / "checkpoint", tmp_path / "checkpoint" / "commits"

    def settings(*, exactly_once: bool) -> job.Settings:
        trigger = {"availableNow": True} if exactly_once else {"processingTime": "0 seconds"}
        return job.Settings("made", "delta", str(checkpoint), trigger, shared_options, exactly_once, {})

    def bodies() -> list[str]:
        return sorted(row.body for row in spark.table("made").collect())

    job.check_table(spark, settings(exactly_once=False))
    earlier = job.start(spark, settings(exactly_once=False))
    hub.append(HUB, "0", [b"a"])
    wait_until(lambda: (noted / "0").exists(), "the first batch has ended", timeout=120)
    (noted / "1").mkdir()
    hub.append(HUB, "0", [b"b"])
    with pytest.raises(StreamingQueryException):
        earlier.awaitTermination(120)
    (noted / "1").rmdir()
    assert bodies() == ["a", "b"]
    hub.append(HUB, "0", [b"c"])
    hub.append(HUB, "1", [b"d"])
    job.check_table(spark, settings(exactly_once=True))
    query = job.start(spark, settings(exactly_once=True))
    assert query.awaitTermination(120)
    assert query.recentProgress[0].batchId == 1, "it was run again"
    assert bodies() == ["a", "b", "c", "d"]


def test_the_job_ends_before_anything_starts(hub: Emulator, tmp_path: Path) -> None:
    settings = {
        "spark.ehbalance.job.table": str(tmp_path / "table"),
        "spark.ehbalance.job.format": "parquet",
        "spark.ehbalance.job.checkpointLocation": str(tmp_path / "checkpoint"),
        "spark.ehbalance.job.source.leaseTable": str(tmp_path / "leases"),
    }
    child = start_job("job", ROOT, settings, hub.connection_string(HUB), tmp_path)
    try:
        assert wait_until(child.ended, "the job ends", timeout=120) == 2
    finally:
        child.kill()
    errors = [line for line in child.printed().splitlines() if line.startswith("Error: ")]
    assert errors == [line for line in child.printed().splitlines() if "format parquet" in line]
    assert "Traceback" not in child.printed()
    assert not {"table", "checkpoint", "leases"} & {path.name for path in tmp_path.iterdir()}


# --- the listener ----------------------------------------------------------------------------------------------


def test_the_listener_warns_once_of_a_file_sink_with_a_lease_table(
    spark: SparkSession,
    hub: Emulator,
    options: dict[str, str],
    shared_options: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def run(name: str, format: str, options: dict[str, str]) -> None:
        for partition in range(8):
            hub.append(HUB, str(partition), [b"event"] * 2)
        events = spark.readStream.format("ehbalance").options(**options, maxEventsPerTrigger="8").load()
        writer = events.select("partition").writeStream.format(format).queryName(name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / f"{name}-c")).start(str(tmp_path / name))
        assert query.awaitTermination(120)
        assert len([progress for progress in query.recentProgress if progress.numInputRows]) > 1

    def warnings() -> list[str]:
        return [text for record in caplog.records if "plain files" in (text := record.getMessage())]

    spark_ehbalance.register(spark)
    caplog.set_level(logging.WARNING, "spark_ehbalance")
    run("alone", "parquet", options)
    run("delta", "delta", shared_options)
    run("shared", "parquet", shared_options)
    run("last", "json", shared_options)
    # Events come one after the other: with the last query's warning all that there is to warn of has been seen.
    wait_until(lambda: any(text.startswith("query last ") for text in warnings()), "the last query is warned of")
    first, _ = warnings()
    assert first.startswith("query shared has a lease table and writes plain files, FileSink[file:/")
    assert "\n" not in first
