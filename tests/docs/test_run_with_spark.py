"""The blocks of the documentation that need Spark and are marked `run`, in a real one, as a reader runs them."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.docs.conftest import HUB, Start, send
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("second spark")]


@pytest.fixture
def clean(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, without queries and the documentation's table afterwards."""
    yield spark
    for query in spark.streams.active:
        query.stop()
    spark.sql(f"DROP TABLE IF EXISTS {HUB}")


@pytest.fixture
def local(tmp_path: Path, hub: Emulator) -> dict[str, str]:
    """What is here instead of the reader's hub, storage and folders. Spark's own folder is another than the test's."""
    secret = tmp_path / "connection-string"
    secret.write_text(hub.connection_string(HUB))
    return {
        '"fullyQualifiedNamespace", "NAMESPACE.servicebus.windows.net"': f'"connectionString", "file:{secret}"',
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net": str(tmp_path),
        '"/checkpoints': f'"{tmp_path}/checkpoints',
    }


def read_all(spark: SparkSession, hub: Emulator, target: str, count: int, condition: str = "true") -> None:
    """Sends events, waits until the target holds so many rows, and stops what reads."""
    # A query that starts at the latest event reads what comes after it has planned for the first time.
    wait_until(lambda: all(query.lastProgress for query in spark.streams.active), "the queries have started")
    send(hub, 16)
    held(spark, target, count, condition)
    for query in spark.streams.active:
        query.stop()


def held(spark: SparkSession, target: str, count: int, condition: str = "true") -> None:
    """Waits until the target, a name or a path, holds so many rows."""

    def rows() -> int:
        assert spark.streams.active, "the query has ended"
        exists = any(Path(target, "_delta_log").glob("*.json")) if "/" in target else spark.catalog.tableExists(target)
        name = f"delta.`{target}`" if "/" in target else target
        return spark.sql(f"SELECT * FROM {name} WHERE {condition}").count() if exists else 0

    wait_until(lambda: rows() == count, f"{target} holds {count} rows", 60)


def test_readme(start: Start, clean: SparkSession, hub: Emulator, local: dict[str, str]) -> None:
    run = start("README.md", local)
    for block in (1, 2):
        run.next()
        read_all(clean, hub, HUB, 16 * block)


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
    read_all(clean, hub, HUB, 16, "flight LIKE 'flight %'")
    clean.sql(f"DROP TABLE {HUB}")  # it has other columns
    run.next()
    read_all(clean, hub, HUB, 16)


def test_quick_start(start: Start, clean: SparkSession, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    replaced = {
        "5672": port,
        '"leases/': f'"{tmp_path}/leases/',
        '"checkpoints/': f'"{tmp_path}/checkpoints/',
        # the test's Spark was started before the variable was set
        "env:EHBALANCE_CONNECTION_STRING": f"file:{tmp_path}/secret",
    }
    run = start("docs/quick-start.md", replaced)
    assert f"localhost:{port}" in run.next()
    run.next()
    (tmp_path / "secret").write_text(os.environ["EHBALANCE_CONNECTION_STRING"])
    assert "failed" not in run.next()

    with DeltaStore(str(tmp_path / "leases" / HUB)) as store:

        def owners() -> Counter[str | None]:
            return Counter(lease.owner for lease in store.read().leases.values()) if store.exists() else Counter()

        run.next()  # the first query
        wait_until(lambda: list(owners().values()) == [8], "the first query has all partitions")
        run.next()  # events
        read(clean, 100)
        run.next()  # the second query
        wait_until(lambda: sorted(owners().values()) == [4, 4], "the two share the partitions")
        assert run.next().count("active") == 2
        run.next()  # stop
        wait_until(lambda: list(owners().values()) == [8], "the first query has them back")
        assert "HandOver" in run.next()

    for query in clean.streams.active:
        query.stop()
    run.next()  # a Spark with Delta, which this one is
    run.next()
    with EventHubProducerClient.from_connection_string(os.environ["EHBALANCE_CONNECTION_STRING"]) as producer:
        producer.send_batch([EventData("one more")])
    held(clean, HUB, 1)


def read(spark: SparkSession, count: int) -> None:
    """Waits until the only query has read so many events."""
    (query,) = spark.streams.active

    def rows() -> int:
        return sum(progress.numInputRows for progress in query.recentProgress)

    wait_until(lambda: rows() == count, f"{count} events are read")
