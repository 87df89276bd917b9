"""Runs the documentation's blocks that are marked `run` and need Spark, with real Spark, like a reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ehbalance
from spark_ehbalance.emulator import Emulator
from tests.docs.conftest import HUB, Start, send
from tests.waiting import wait_until

#: Seconds for a separate Spark to start and to read.
_START = 180

pytestmark = pytest.mark.spark


@pytest.fixture
def clean(spark: SparkSession) -> Iterator[SparkSession]:
    """The session; queries and the documentation's table are removed after the test."""
    yield spark
    for query in spark.streams.active:
        query.stop()
    spark.sql(f"DROP TABLE IF EXISTS {HUB}")


@pytest.fixture
def local(tmp_path: Path, hub: Emulator) -> dict[str, str]:
    """Values used in place of the reader's hub, storage and folders. Spark's working folder is not the test's."""
    secret = tmp_path / "connection-string"
    secret.write_text(hub.connection_string(HUB))
    return {
        '"fullyQualifiedNamespace", "NAMESPACE.servicebus.windows.net"': f'"connectionString", "file:{secret}"',
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net": str(tmp_path),
        '"/checkpoints': f'"{tmp_path}/checkpoints',
    }


def read_all(spark: SparkSession, hub: Emulator, target: str, count: int) -> None:
    """Send events, wait until the target contains `count` rows, and stop all queries."""
    # A query that starts at `latest` reads only events sent after its first plan.
    wait_until(lambda: all(query.lastProgress for query in spark.streams.active), "the queries have started")
    send(hub, 16)
    wait_for_rows(spark, target, count)


def wait_for_rows(spark: SparkSession, target: str, count: int) -> None:
    """Wait until the target, a name or a path, contains `count` rows, and stop all queries."""
    place = Path(spark.conf.get("spark.sql.warehouse.dir", "").removeprefix("file:"), target)

    def rows() -> int:
        assert spark.streams.active, "the query has ended"
        return DeltaTable(place).count() if DeltaTable.is_deltatable(str(place)) else 0

    wait_until(lambda: rows() == count, f"{target} holds {count} rows", _START)
    for query in spark.streams.active:
        spark_ehbalance.stop(query)  # after the batch, because the next block must not rerun it with another sink


def test_readme(start: Start, clean: SparkSession, hub: Emulator, local: dict[str, str]) -> None:
    run = start("README.md", local | {"spark_ehbalance.run(query)": "query"})
    for block in (1, 2):
        run.next()
        read_all(clean, hub, HUB, 16 * block)


@pytest.mark.heavy
def test_exactly_once(start: Start, clean: SparkSession, hub: Emulator, local: dict[str, str], tmp_path: Path) -> None:
    events = (
        clean.readStream.format("ehbalance")
        .option("connectionString", hub.connection_string(HUB))
        .option("leaseTable", str(tmp_path / "leases"))
        .load()
    )
    run = start("docs/exactly-once.md", local, events=events)

    run.next()
    read_all(clean, hub, str(tmp_path / HUB), 16)
    run.next()
    read_all(clean, hub, HUB, 16)
    assert clean.table(HUB).where("flight LIKE 'flight %'").count() == 16
    clean.sql(f"DROP TABLE {HUB}")  # it has other columns
    run.next()
    read_all(clean, hub, HUB, 16)


def test_decoding(start: Start, clean: SparkSession, hub: Emulator, local: dict[str, str], tmp_path: Path) -> None:
    events = (
        clean.readStream.format("ehbalance")
        .option("connectionString", hub.connection_string(HUB))
        .option("leaseTable", str(tmp_path / "leases"))
        .option("startingPosition", "earliest")
        .load()
    )
    hub.append(HUB, 0, [b'{"id": "flight 1", "delay": 5, "gate": "A1"}', b"no JSON", b'{"id": "flight 2"}'])
    start("docs/options.md", local, events=events).next()
    wait_for_rows(clean, HUB, 3)
    rows = clean.table(HUB).orderBy("sequenceNumber").select("id", "delay", "bad").collect()
    assert [tuple(row) for row in rows] == [("flight 1", 5, None), (None, None, "no JSON"), ("flight 2", None, None)]


def test_writing(start: Start, spark: SparkSession, hub: Emulator) -> None:
    start("docs/writing.md", CONNECTION_STRING=hub.connection_string(HUB), spark=spark).next()
    (event,) = spark.read.format("ehbalance").option("connectionString", hub.connection_string(HUB)).load().collect()
    assert (event.body, event.partitionKey, event.properties) == (b"hello", "device-7", {"unit": "ms", "version": "2"})
