"""Batch, stream, leases, restart and sink; nox runs this file in an environment for each supported Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.spark_settings import SESSION
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.spark_versions import delta_jar, minor_version
from tests.spark.settings import QUICK_JAVA
from tests.waiting import wait_until

HUB, PARTITIONS = "hub", 4

HAS_DELTA = delta_jar(pyspark.__version__) is not None

Rows = list[tuple[str, int]]
Start = Callable[..., StreamingQuery]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Seconds for Python to reach the JVM; the default of 15 is not enough on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
        **(SESSION if HAS_DELTA else {}),
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    spark_ehbalance.register(session)
    yield session
    session.stop()


@pytest.fixture
def hub() -> Iterator[Emulator]:
    with Emulator({HUB: PARTITIONS}) as emulator:
        yield emulator


@pytest.fixture(params=["alone", "sharing"])
def options(request: pytest.FixtureRequest, hub: Emulator, tmp_path: Path) -> dict[str, str]:
    """Options with and without a lease table."""
    alone = {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}
    leases = {"leaseTable": str(tmp_path / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}
    return alone if request.param == "alone" else alone | leases


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Starts a query that writes to a function or a list of rows."""
    started: list[StreamingQuery] = []

    def make(
        options: dict[str, str], sink: Rows | Callable[..., None], name: str = "a", **trigger: bool
    ) -> StreamingQuery:
        def append(frame: DataFrame, batch: int) -> None:
            assert isinstance(sink, list)
            sink.extend(keys(frame))

        writer = spark.readStream.format("ehbalance").options(**options).load().writeStream
        writer = writer.foreachBatch(append if isinstance(sink, list) else sink)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint {name}"))
        started.append((writer.trigger(**trigger) if trigger else writer).start())
        return started[-1]

    yield make
    for query in started:
        query.stop()


def keys(frame: DataFrame) -> Rows:
    return [(row.partition, row.sequenceNumber) for row in frame.select("partition", "sequenceNumber").collect()]


def send(hub: Emulator, count: int) -> Rows:
    """Send `count` events to every partition. Returns all events in the hub, in order."""
    rows = Rows()
    for partition in map(str, range(PARTITIONS)):
        hub.append(HUB, partition, [b"event"] * count)
        rows += [(partition, n) for n in range(hub.partition_state(HUB, partition).next_sequence_number)]
    return rows


def reads(rows: Callable[[], Rows], sent: Rows, *queries: StreamingQuery) -> None:
    """Wait until every event in `sent` was read once."""
    wait_until(lambda: len(rows()) >= len(sent) or any(query.exception() for query in queries), "all is read")
    assert [error for query in queries if (error := query.exception())] == []
    assert sorted(rows()) == sent


def test_batch_and_sink(spark: SparkSession, hub: Emulator) -> None:
    sent = [(b"%d" % number, None if number % 3 else "key", {"n": str(number)}) for number in range(30)]
    frame = spark.createDataFrame(sent, "body binary, partitionKey string, properties map<string,string>")
    connection = {"connectionString": hub.connection_string(HUB)}
    frame.write.format("ehbalance").options(**connection).mode("append").save()
    read = spark.read.format("ehbalance").options(**connection, startingPosition="earliest").load()
    found = [(bytes(row.body), row.partitionKey, row.properties) for row in read.collect()]
    assert sorted(found, key=str) == sorted(sent, key=str)


def test_stream_and_restart(hub: Emulator, options: dict[str, str], start: Start) -> None:
    rows, limited = Rows(), options | {"maxEventsPerTrigger": "10"}
    query = start(limited, rows)
    reads(lambda: rows, send(hub, 8), query)
    spark_ehbalance.stop(query)
    sent = send(hub, 3)
    query = start(limited, rows)
    reads(lambda: rows, sent, query)
    reads(lambda: rows, send(hub, 2), query)


def test_failed_batch_is_reread(hub: Emulator, options: dict[str, str], start: Start) -> None:
    rows, sent = Rows(), send(hub, 4)

    def fail(frame: DataFrame, batch: int) -> None:
        raise RuntimeError(f"the sink fails at {len(keys(frame))} rows")

    wait_until(start(options, fail).exception, "it fails")
    reads(lambda: rows, sent, start(options, rows))


def test_available_now(hub: Emulator, options: dict[str, str], start: Start) -> None:
    rows, sent = Rows(), send(hub, 8)
    assert start(options | {"maxEventsPerTrigger": "10"}, rows, availableNow=True).awaitTermination(120)
    one_batch = minor_version(pyspark.__version__) < (4, 2)
    assert len(rows) == (10 if one_batch else len(sent))


@pytest.mark.parametrize("options", ["sharing"], indirect=True)
def test_two_queries_share(hub: Emulator, options: dict[str, str], start: Start) -> None:
    a, b, store = Rows(), Rows(), DeltaStore(options["leaseTable"])
    first = start(options, a, "a")
    reads(lambda: a, send(hub, 3), first)
    second = start(options, b, "b")
    wait_until(
        lambda: len({lease.owner for lease in store.read().leases.values()} - {None}) == 2 or second.exception(),
        "both own",
    )
    reads(lambda: a + b, send(hub, 2), first, second)
    assert b
    sent = send(hub, 2)
    spark_ehbalance.stop(first)
    reads(lambda: a + b, sent, second)


if HAS_DELTA:

    @pytest.mark.parametrize("options", ["sharing"], indirect=True)
    def test_exactly_once(
        spark: SparkSession, hub: Emulator, options: dict[str, str], start: Start, tmp_path: Path
    ) -> None:
        target, sent = tmp_path / "target", send(hub, 3)
        query = start(options, once(str(target)))
        first = target / "_delta_log" / "00000000000000000000.json"
        wait_until(lambda: first.exists() or query.exception(), "a batch is written")
        reads(lambda: keys(spark.read.format("delta").load(str(target))), sent, query)
