"""A single query, with and without a lease table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined]

from spark_ehbalance.emulator import Emulator
from tests.metrics.prometheus import free_port, scrape_page
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Rows = list[tuple[str, int]]


def fill(hub: Emulator, count: int, *, partitions: int = 8) -> set[tuple[str, int]]:
    """Send `count` events to every partition; returns all events that the hub then contains."""
    for partition in range(partitions):
        hub.append(HUB, str(partition), [b"event"] * count)
    return {
        (str(p), n) for p in range(partitions) for n in range(hub.partition_state(HUB, str(p)).next_sequence_number)
    }


def rows(frame: DataFrame) -> Rows:
    return sorted((row.partition, row.sequenceNumber) for row in frame.select("partition", "sequenceNumber").collect())


def run_available(
    spark: SparkSession, options: dict[str, str], folder: Path, *, process: Callable[[DataFrame, int], None]
) -> None:
    """Run a query with Trigger.AvailableNow until it ends."""
    run_frame(spark.readStream.format("ehbalance").options(**options).load(), folder, process=process)


def run_frame(frame: DataFrame, folder: Path, *, process: Callable[[DataFrame, int], None]) -> None:
    writer = frame.writeStream.foreachBatch(process).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(120), "the query ends"


def owned_by_served(port: int) -> list[float]:
    """The number of partitions owned by every member that serves metrics on this port."""
    lines = scrape_page(port).splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("ehbalance_owned_partitions{")]


@pytest.fixture(params=["alone", "sharing by websocket"])
def hub_and_options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Emulator, dict[str, str]]]:
    """Without leases; or with leases over websockets and a private CA, which the planner and the workers need too."""
    by_websocket = request.param != "alone"
    with Emulator({HUB: 8}, tls=by_websocket, websocket_port=0 if by_websocket else None) as hub:
        options = {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}
        if by_websocket:
            options |= {
                "leaseTable": str(tmp_path / "leases"),
                "leaseDuration": "6 s",
                "balanceInterval": "1 s",
                "transportType": "AmqpOverWebsocket",
                "customEndpointAddress": f"localhost:{hub.websocket_port}",
                "caFile": str(hub.ca_file),
            }
        yield hub, options


def test_query_restarted_during_a_batch_ends_after_reading_everything(
    spark: SparkSession, hub_and_options: tuple[Emulator, dict[str, str]], tmp_path: Path
) -> None:
    """Batches have `maxEventsPerTrigger` events and contain the same rows whenever they are evaluated again."""
    hub, options = hub_and_options
    done: Rows = []
    failed: list[Rows] = []

    def process(frame: DataFrame, batch: int) -> None:
        batch_rows = rows(frame)
        assert rows(frame) == batch_rows
        if batch == 1 and not failed:
            failed.append(batch_rows)
            raise RuntimeError("the sink fails in the middle of the batch")
        if batch == 1:
            assert batch_rows == failed[0]
        assert len(batch_rows) <= 30
        done.extend(batch_rows)

    fill(hub, 10)
    limited = {**options, "maxEventsPerTrigger": "30"}
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run_available(spark, limited, tmp_path, process=process)
    assert len(failed[0]) == 30
    everything = fill(hub, 3)
    run_available(spark, limited, tmp_path, process=process)
    assert sorted(done) == sorted(everything)
    if "leaseTable" not in options:
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"], "nothing else is left behind"


def test_two_queries_in_one_session_share_without_empty_batches(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path, owners: Callable[[], list[str]]
) -> None:
    """One query is stopped and restarted, which moves partitions. New partitions are read from their first event. Both
    queries use the same port for metrics, which the first one gets."""
    port = free_port()
    more = {"startingPosition": "latest", "metricsPort": str(port)}
    read: Rows = []
    batches: list[int] = []

    def process(frame: DataFrame, batch: int) -> None:
        batches.append(batch)
        read.extend(rows(frame))

    def start(name: str) -> StreamingQuery:
        events = spark.readStream.format("ehbalance").options(**shared_options | more).load()
        writer = events.writeStream.foreachBatch(process).option("checkpointLocation", str(tmp_path / name))
        return writer.start()

    def wait_for(count: int) -> None:
        def shared() -> bool:
            assert all(query.isActive for query in queries.values())
            return None not in owners() and len({*owners()}) == count

        wait_until(shared, f"{count} of them own all partitions")

    queries: dict[str, StreamingQuery] = {}
    try:
        queries["a"] = start("a")
        wait_for(1)
        queries["b"] = start("b")
        wait_for(2)
        wait_until(lambda: owned_by_served(port) == [4.0], "the metrics are those of one of two")
        queries.pop("b").stop()
        wait_for(1)
        assert set(batches) <= {0}, "Spark runs the first batch of a query in any case, and none was added"
        queries["b"] = start("b")
        wait_for(2)
        hub.add_partitions(HUB, 2)
        everything = fill(hub, 1, partitions=10)
        wait_until(lambda: len(read) >= 10 or not queries["a"].isActive, "the new partitions are read too")
        assert sorted(read) == sorted(everything)
    finally:
        for query in queries.values():
            query.stop()
