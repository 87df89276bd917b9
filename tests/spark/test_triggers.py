"""Long triggers and stopping: what the listener and `spark_ehbalance.stop` are for. One Spark, a planner beside it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.planner import Planner
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Rows = list[tuple[str, int]]

#: Longer than any of these tests, so that no trigger comes by chance.
LONG_TRIGGER = "1 hour"


class Sink:
    """Keeps what is written. A batch ends only while `open` is set."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.begun = 0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [(row.partition, row.sequenceNumber) for row in frame.select("partition", "sequenceNumber").collect()]
        self.begun += bool(rows)
        self.open.wait(60)
        self.rows += rows


@pytest.fixture
def listening(spark: SparkSession) -> None:
    spark_ehbalance.register(spark)


def test_a_session_that_is_registered_twice_listens_once(spark: SparkSession, listening: None) -> None:
    manager: Any = spark.streams
    before = len(manager._jsqm.listListeners())
    spark_ehbalance.register(spark)
    assert len(manager._jsqm.listListeners()) == before


@pytest.fixture
def start(
    spark: SparkSession, shared_options: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    started: list[StreamingQuery] = []

    def make(sink: Sink, trigger: str | None = None, **more: str) -> StreamingQuery:
        writer = (
            spark.readStream.format("ehbalance")
            .options(**shared_options, **more)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        started.append((writer.trigger(processingTime=trigger) if trigger else writer).start())
        return started[-1]

    yield make
    for query in started:
        query.stop()


@pytest.fixture
def other(shared_options: dict[str, str]) -> Iterator[Callable[..., Planner]]:
    """Starts another member of the group, without a Spark."""
    started: list[Planner] = []

    def make(**more: str) -> Planner:
        started.append(start_planner(stream_options({**shared_options, **more}), "other"))
        return started[-1]

    yield make
    for planner in started:
        planner.stop()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], Snapshot]:
    """Asks the lease table."""
    store = DeltaStore(str(tmp_path / "leases"))
    return store.read


def checkpoints(snapshot: Snapshot) -> dict[str, int]:
    return {p: lease.checkpoint.next if lease.checkpoint else 0 for p, lease in snapshot.leases.items()}


def read_rest(planner: Planner, newest: int, start: StreamOffset | None = None) -> tuple[Rows, StreamOffset]:
    """What `planner` reads in one batch after `start` of everything it owns now, once it knows that each partition ends
    at `newest`; and the end of the batch."""
    wait_until(lambda: set(planner.latest().values()) == {newest}, "it knows of all events")
    start = start or StreamOffset("other")
    end = planner.next_batch(start, None)
    read = planner.ranges(end) if end is not start else []
    return [(each.partition, n) for each in read for n in range(each.start, each.end)], end


@pytest.mark.usefixtures("listening")
def test_a_handover_comes_right_after_the_batch_with_a_long_trigger(
    hub: Emulator,
    start: Callable[..., StreamingQuery],
    other: Callable[..., Planner],
    table: Callable[[], Snapshot],
) -> None:
    sink = Sink()
    sink.open.clear()
    for partition in range(8):
        hub.append(HUB, partition, [b"event"] * 10)
    query = start(sink, LONG_TRIGGER, handoverTimeout="60 s")
    wait_until(lambda: sink.begun or query.exception(), "the batch is being written")
    planner = other(handoverTimeout="60 s")
    wait_until(lambda: sum(1 for lease in table().leases.values() if lease.handover) == 4, "four are to be handed over")
    assert not planner.holdings(), "the batch is waited for"

    sink.open.set()
    ended = time.monotonic()
    wait_until(lambda: len(planner.holdings()) == 4, "they are handed over", 30)
    took = time.monotonic() - ended
    print(f"handed over {took:.2f} s after the batch had ended")
    assert took < 5, "the next trigger is an hour away"
    assert set(checkpoints(table()).values()) == {10}
    assert Counter(sink.rows + read_rest(planner, 10)[0]) == Counter((str(p), n) for p in range(8) for n in range(10))


@pytest.mark.usefixtures("listening")
def test_a_query_that_is_stopped_under_load_has_written_what_is_checkpointed(
    hub: Emulator, start: Callable[..., StreamingQuery], table: Callable[[], Snapshot]
) -> None:
    sink, over = Sink(), threading.Event()

    def keep_sending() -> None:
        while not over.wait(0.02):
            for partition in range(8):
                hub.append(HUB, partition, [b"event"] * 3)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        query = start(sink)
        wait_until(lambda: sink.begun > 3 or query.exception(), "some batches are written")
        began = time.monotonic()
        spark_ehbalance.stop(query)
        print(f"stopped in {time.monotonic() - began:.2f} s")
    finally:
        over.set()
        sender.join()
    assert not query.isActive
    assert query.exception() is None
    assert max(Counter(sink.rows).values()) == 1
    written = {str(p): sum(1 for partition, _ in sink.rows if partition == str(p)) for p in range(8)}
    snapshot = table()
    assert checkpoints(snapshot) == written
    assert {lease.owner for lease in snapshot.leases.values()} == {None}
    wait_until(lambda: not table().members, "the planner, which ends by itself, has left the group")


def test_without_the_listener_a_long_trigger_loses_nothing(
    hub: Emulator,
    start: Callable[..., StreamingQuery],
    other: Callable[..., Planner],
    table: Callable[[], Snapshot],
) -> None:
    sink = Sink()
    for partition in range(8):
        hub.append(HUB, partition, [b"event"] * 10)
    query = start(sink, LONG_TRIGGER)
    wait_until(lambda: len(sink.rows) == 80 or query.exception(), "the batch is written")
    for partition in range(8):
        hub.append(HUB, partition, [b"event"] * 5)
    planner = other(handoverTimeout="2 s")
    wait_until(lambda: len(planner.holdings()) == 4, "they are taken in the end")
    moved = set(planner.holdings())
    assert set(checkpoints(table()).values()) == {0}, "the planner cannot know that the batch has ended"
    again, end = read_rest(planner, 15)
    assert Counter(again) == Counter((p, n) for p in moved for n in range(15)), "read again from the last checkpoint"
    assert {*sink.rows, *again} >= {(p, n) for p in moved for n in range(15)}

    query.stop()
    wait_until(lambda: len(planner.holdings()) == 8, "the other has all")
    planner.finish(end)
    rest, _ = read_rest(planner, 15, end)
    assert {*sink.rows, *again, *rest} == {(str(p), n) for p in range(8) for n in range(15)}
