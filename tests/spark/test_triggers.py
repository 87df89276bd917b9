"""Long triggers and stopping: the purpose of the listener and of `spark_ehbalance.stop`. One Spark, another planner."""

from __future__ import annotations

import json
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
from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.options import stream_options
from tests.spark.test_single_query import Rows, fill, rows
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


class Sink:
    """Records written rows. A batch ends only while `open` is set."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.begun = 0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        batch_rows = rows(frame)
        self.begun += bool(batch_rows)
        self.open.wait(60)
        self.rows += batch_rows


@pytest.fixture
def start(
    spark: SparkSession, shared_options: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query in a session with the listener."""
    manager: Any = spark.streams
    before = len(manager._jsqm.listListeners())
    for _ in range(2):
        spark_ehbalance.register(spark)
        assert len(manager._jsqm.listListeners()) == before + 1, "registered twice it listens once"
    started: list[StreamingQuery] = []

    def make(sink: Sink, **trigger: str) -> StreamingQuery:
        stream = spark.readStream.format("ehbalance").options(**shared_options, handoverTimeout="60 s").load()
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append((writer.trigger(**trigger) if trigger else writer).start())
        return started[-1]

    yield make
    for query in started:
        query.stop()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], Snapshot]:
    """Reads the lease table."""
    return DeltaStore(str(tmp_path / "leases")).read


def checkpoints(snapshot: Snapshot) -> dict[str, int]:
    return {p: lease.checkpoint.next if lease.checkpoint else 0 for p, lease in snapshot.leases.items()}


def test_handover_follows_the_batch_immediately_despite_a_long_trigger(
    hub: Emulator,
    shared_options: dict[str, str],
    start: Callable[..., StreamingQuery],
    table: Callable[[], Snapshot],
) -> None:
    """The other query gets nothing until the batch has ended."""
    sink = Sink()
    sink.open.clear()
    everything = fill(hub, 10)
    query = start(sink, processingTime="1 hour")
    wait_until(lambda: sink.begun or query.exception(), "the batch is being written")
    planner = start_planner(stream_options(shared_options | {"handoverTimeout": "60 s"}), "other")
    try:
        wait_until(lambda: sum(1 for lease in table().leases.values() if lease.handover) == 4, "four are to be given")
        assert not planner.readable(), "the batch is waited for"

        sink.open.set()
        ended = time.monotonic()
        wait_until(lambda: len(planner.readable()) == 4, "they are handed over", 30)
        took = time.monotonic() - ended
        print(f"handed over {took:.2f} s after the batch had ended")
        assert took < 5, "the next trigger is an hour away"
        assert set(checkpoints(table()).values()) == {10}
        assert Counter(sink.rows) == Counter(everything)
        wait_until(lambda: set(planner.latest().values()) == {10}, "it knows of all events")
        assert planner.next_batch(begin := StreamOffset("other"), None) is begin, "there is nothing to read"
    finally:
        planner.stop()


def test_query_reports_lag_and_a_stop_under_load_keeps_sink_and_checkpoint_consistent(
    hub: Emulator, start: Callable[..., StreamingQuery], table: Callable[[], Snapshot]
) -> None:
    sink, over = Sink(), threading.Event()
    sink.open.clear()
    fill(hub, 2)
    query = start(sink)
    wait_until(lambda: sink.begun or query.exception(), "the first batch is being written")
    assert spark_ehbalance.lag(query) is None, "no progress contains the planner's address"
    sink.open.set()
    at_rest = wait_until(lambda: spark_ehbalance.lag(query), "the first batch has ended")
    assert (at_rest.events, at_rest.seconds) == (0, 0.0)
    sink.open.clear()
    fill(hub, 3)
    wait_until(lambda: (lag := spark_ehbalance.lag(query)) and lag.events == 24 and lag, "all are unread")
    sink.open.set()
    progress: Any = wait_until(lambda: len(query.recentProgress) > 1 and query.lastProgress, "its progress is reported")
    reported = json.loads(progress.json)["sources"][0]["latestOffset"]
    assert reported.items() >= dict.fromkeys(("minOffsetsBehindLatest", "maxOffsetsBehindLatest"), 0).items()

    def keep_sending() -> None:
        while not over.wait(0.02):
            fill(hub, 3)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        wait_until(lambda: sink.begun > 5 or query.exception(), "more batches are written")
        began = time.monotonic()
        spark_ehbalance.stop(query)
        print(f"stopped in {time.monotonic() - began:.2f} s")
    finally:
        over.set()
        sender.join()
    assert not query.isActive
    assert query.exception() is None
    assert spark_ehbalance.lag(query) is None
    assert max(Counter(sink.rows).values()) == 1
    snapshot = table()
    assert checkpoints(snapshot) == Counter(partition for partition, _ in sink.rows)
    assert {lease.owner for lease in snapshot.leases.values()} == {None}
    wait_until(lambda: not table().members, "the planner, which ends by itself, has left the group")


def test_stop_during_the_first_batch_begins_no_second_one(
    hub: Emulator, start: Callable[..., StreamingQuery], table: Callable[[], Snapshot]
) -> None:
    sink = Sink()
    sink.open.clear()
    fill(hub, 2)
    query = start(sink)
    wait_until(lambda: sink.begun or query.exception(), "the first batch is being written")
    fill(hub, 3)
    stopping = threading.Thread(target=spark_ehbalance.stop, args=(query,))
    stopping.start()
    leaving = [MemberState.LEAVING]
    wait_until(lambda: [member.state for member in table().members.values()] == leaving, "the query is leaving")
    sink.open.set()
    stopping.join()
    assert query.exception() is None
    assert sink.begun == 1
    snapshot = table()
    assert checkpoints(snapshot) == Counter(partition for partition, _ in sink.rows)
    assert {lease.owner for lease in snapshot.leases.values()} == {None}
