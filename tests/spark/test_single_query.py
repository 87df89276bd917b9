"""One query, with and without a lease table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Rows = list[tuple[str, int]]


@pytest.fixture(params=["alone", "sharing"])
def either(request: pytest.FixtureRequest, options: dict[str, str], shared_options: dict[str, str]) -> dict[str, str]:
    """The options of a query without leases, and of one with."""
    return options if request.param == "alone" else shared_options


@pytest.fixture
def queries() -> Iterator[list[StreamingQuery]]:
    """Queries to stop after the test."""
    started: list[StreamingQuery] = []
    yield started
    for query in started:
        query.stop()


def fill(hub: Emulator, each: int, *, partitions: int = 8) -> set[tuple[str, int]]:
    """Send `each` events to every partition; returns all that the hub has then."""
    for partition in range(partitions):
        hub.append(HUB, str(partition), [b"event"] * each)
    return {
        (str(p), n) for p in range(partitions) for n in range(hub.partition_state(HUB, str(p)).next_sequence_number)
    }


def rows(frame: DataFrame) -> Rows:
    return sorted((row.partition, row.sequenceNumber) for row in frame.select("partition", "sequenceNumber").collect())


def run_available(
    spark: SparkSession, options: dict[str, str], folder: Path, *, process: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Run a query with Trigger.AvailableNow to its end."""
    query = (
        spark.readStream.format("ehbalance")
        .options(**options)
        .load()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query ends"
    return query


def test_available_now_ends_and_the_next_run_continues(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path
) -> None:
    read: Rows = []

    def process(frame: DataFrame, batch: int) -> None:
        read.extend(rows(frame))

    first = fill(hub, 10)
    run_available(spark, {**either, "maxEventsPerTrigger": "50"}, tmp_path, process=process)
    assert sorted(read) == sorted(first)

    everything = fill(hub, 5)
    run_available(spark, either, tmp_path, process=process)
    assert sorted(read) == sorted(everything)

    run_available(spark, either, tmp_path, process=process)
    assert sorted(read) == sorted(everything)


def test_batches_keep_to_max_events_per_trigger(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path
) -> None:
    sizes: list[int] = []
    fill(hub, 10)
    run_available(
        spark,
        {**either, "maxEventsPerTrigger": "30"},
        tmp_path,
        process=lambda frame, batch: sizes.append(frame.count()),
    )
    assert [size for size in sizes if size] == [30, 30, 20]


def test_a_batch_used_twice_has_the_same_rows(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path
) -> None:
    seen: list[tuple[Rows, Rows]] = []
    everything = fill(hub, 20)
    run_available(spark, either, tmp_path, process=lambda frame, batch: seen.append((rows(frame), rows(frame))))
    assert all(once == again for once, again in seen)
    assert sorted(row for once, _ in seen for row in once) == sorted(everything)


def test_a_restart_in_the_middle_of_a_batch(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path
) -> None:
    done: Rows = []
    failed: list[Rows] = []

    def process(frame: DataFrame, batch: int) -> None:
        batch_rows = rows(frame)
        if batch == 1 and not failed:
            failed.append(batch_rows)
            raise RuntimeError("the sink fails in the middle of the batch")
        if failed and batch == 1:
            assert batch_rows == failed[0]
        done.extend(batch_rows)

    fill(hub, 10)
    limited = {**either, "maxEventsPerTrigger": "40"}
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run_available(spark, limited, tmp_path, process=process)
    everything = fill(hub, 3)
    run_available(spark, limited, tmp_path, process=process)
    assert sorted(done) == sorted(everything)


def test_without_leases_nothing_is_left_behind(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    fill(hub, 1)
    run_available(spark, options, tmp_path, process=lambda frame, batch: None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_new_partitions_are_read_from_their_first_event(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path, queries: list[StreamingQuery]
) -> None:
    read: set[tuple[str, int]] = set()
    queries.append(
        spark.readStream.format("ehbalance")
        .options(**{**either, "startingPosition": "latest"})
        .load()
        .writeStream.foreachBatch(lambda frame, batch: read.update(rows(frame)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_until(lambda: queries[0].recentProgress or _trickle(hub, read), "the query reads")
    hub.add_partitions(HUB, 2)
    hub.append(HUB, "8", [b"new"])
    hub.append(HUB, "9", [b"new"])
    wait_until(lambda: {("8", 0), ("9", 0)} <= read or queries[0].exception(), "the new partitions are read")
    assert {("8", 0), ("9", 0)} <= read


def _trickle(hub: Emulator, read: set[tuple[str, int]]) -> bool:
    hub.append(HUB, "0", [b"event"])
    return bool(read)


def test_an_idle_query_makes_no_batches(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path, queries: list[StreamingQuery]
) -> None:
    batches: list[int] = []

    def start(name: str) -> None:
        queries.append(
            spark.readStream.format("ehbalance")
            .options(**shared_options)
            .load()
            .writeStream.foreachBatch(lambda frame, batch: batches.append(batch))
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )

    def owners() -> int:
        from spark_ehbalance.stores.delta import DeltaStore

        store = DeltaStore(shared_options["leaseTable"])
        return len({lease.owner for lease in store.read().leases.values()}) if store.exists() else 0

    start("a")
    wait_until(lambda: owners() == 1, "the first owns all")
    start("b")
    wait_until(lambda: owners() == 2, "the second has its share")
    queries[1].stop()
    wait_until(lambda: owners() == 1, "the first owns all again")
    assert set(batches) <= {0}, "Spark runs the first batch of a query in any case, and none was added"


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"strategy": "best"}, "option strategy='best' is wrong: allowed is one of balanced, cooperative, eph"),
        (
            {"leaseDuration": "1 s", "leaseTable": "/t"},
            "leaseDuration (1 s) must be longer than balanceInterval (10 s)",
        ),
        ({"maxEventPerTrigger": "1"}, "there is no option 'maxeventpertrigger': did you mean maxEventsPerTrigger?"),
    ],
)
def test_wrong_options_are_errors_at_once(
    wrong: dict[str, str], line: str, spark: SparkSession, options: dict[str, str]
) -> None:
    with pytest.raises(AnalysisException) as raised:
        spark.readStream.format("ehbalance").options(**{**options, **wrong}).load()
    assert line in str(raised.value)


def test_an_unreachable_hub_creates_nothing(spark: SparkSession, tmp_path: Path) -> None:
    connection = "Endpoint=sb://localhost:9;SharedAccessKeyName=n;SharedAccessKey=hidden;UseDevelopmentEmulator=true"
    options = {"connectionString": connection, "eventHubName": "hub", "leaseTable": str(tmp_path / "leases")}
    with pytest.raises(StreamingQueryException) as raised:
        run_available(spark, options, tmp_path, process=lambda frame, batch: None)
    assert "event hub 'hub' at localhost:9 did not answer" in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert not (tmp_path / "leases").exists()


def test_offsets_and_progress_hold_no_secret(
    spark: SparkSession, hub: Emulator, either: dict[str, str], tmp_path: Path
) -> None:
    fill(hub, 1)
    query = run_available(spark, either, tmp_path, process=lambda frame, batch: None)
    progress: Any = query.lastProgress
    told = json.dumps(json.loads(progress.json)) + str(query.exception())
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert "SharedAccessKey" not in told + written
