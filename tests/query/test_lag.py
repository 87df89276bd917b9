"""How far queries are behind, compared with what azure-eventhub's client counts in the same hub."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventHubConsumerClient

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.metrics.definitions import LAG_EVENTS, LAG_SECONDS
from spark_ehbalance.metrics.table import view_samples
from spark_ehbalance.query.control_socket import send
from spark_ehbalance.query.receivers import RECEIVERS
from spark_ehbalance.spark.datasource import StreamReader, Task
from tests.query.queries import Group, Query
from tests.query.support import HUB, hub_options
from tests.waiting import wait_until

#: Milliseconds between two answers about a partition, with what a busy machine adds.
POLL = 2500

#: The consumer group of the client that counts, which disturbs nobody.
CHECKER = "checker"

ALL = ("0", "1")
PARTITIONS = len(ALL)


def counted(emulator: Emulator, partition: str, count: int) -> list[int]:
    """When each event of a partition was enqueued, in milliseconds since 1970, by azure-eventhub's client in another
    consumer group, where it disturbs nobody. There are so many."""
    times: list[int] = []
    emulator.add_consumer_group(HUB, CHECKER)
    client = EventHubConsumerClient.from_connection_string(emulator.connection_string(HUB), CHECKER)

    def take(_: Any, events: Any) -> None:
        times.extend(round(1000 * each.enqueued_time.timestamp()) for each in events)

    where: dict[str, Any] = {"partition_id": partition, "starting_position": "-1"}
    threading.Thread(target=client.receive_batch, args=(take,), kwargs=where, daemon=True).start()
    wait_until(lambda: len(times) >= count, "the client has read all")
    client.close()  # its thread ends later
    assert len(times) == count
    return times


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, PARTITIONS)
    yield made
    made.close()


def told(query: Query) -> dict[str, tuple[int, int, float | None]]:
    """The planner's answer to the driver: `next`, `end` and seconds."""
    assert query.planner.address is not None
    answer = send(query.planner.address, {"lag": True})
    assert isinstance(answer, dict)
    return {partition: tuple(each) for partition, each in answer["lag"].items()}


def in_table(group: Group) -> dict[str, tuple[int, int]]:
    """`next` and `end`, as the lease table has them."""
    snapshot = group.snapshot()
    shown_alike(snapshot)
    lags = {partition: lease.behind for partition, lease in snapshot.leases.items()}
    return {partition: (lag.next, lag.end) for partition, lag in lags.items() if lag is not None}


def shown_alike(snapshot: Snapshot) -> None:
    """`ehbalance status`, its dashboard and `ehbalance metrics` show the same."""
    now_ms = round(1000 * time.time())
    lags = {partition: lag for partition, lease in snapshot.leases.items() if (lag := lease.behind) is not None}
    wanted = {partition: (lag.events, lag.seconds(now_ms)) for partition, lag in lags.items()}
    printed = {each["partition"]: each["lag"] for each in GroupView(snapshot, now_ms).to_json()["partitions"]}
    assert {p: (each["events"], each["seconds"]) for p, each in printed.items() if each} == wanted
    measured = {(each.metric, each.labels[-1]): each.value for each in view_samples(GroupView(snapshot, now_ms))}
    assert {p: (measured[LAG_EVENTS, p], measured.get((LAG_SECONDS, p))) for p in wanted} == wanted


def since(group: Group, partition: str) -> int | None:
    lag = group.leases()[partition].behind
    return lag and lag.unread_since_ms


def check_since(group: Group, partition: str, number: int, count: int) -> None:
    """The table says when that event, the next one of so many in the partition, was enqueued, and not too late."""
    true, known = counted(group.emulator, partition, count)[number], since(group, partition)
    assert known is not None
    assert true - POLL <= known <= true


def test_while_reading_and_at_rest(group: Group) -> None:
    query = group.query()
    assert told(query) == dict.fromkeys(ALL, (0, 0, 0.0))
    group.append(10, PARTITIONS)
    query.run(query.batch(limit=4 * PARTITIONS))
    assert {p: each[:2] for p, each in told(query).items()} == dict.fromkeys(ALL, (0, 10)), "the sink is not finished"
    query.planner.finish(query.finished)
    assert {p: each[:2] for p, each in told(query).items()} == dict.fromkeys(ALL, (4, 10))
    wait_until(lambda: in_table(group) == dict.fromkeys(ALL, (4, 10)), "the table has it")
    check_since(group, "1", 4, 10)
    known, before, seconds = since(group, "1"), time.time(), told(query)["1"][2]
    assert known is not None
    assert seconds is not None
    assert before - seconds - 0.01 <= known / 1000 <= time.time() - seconds + 0.01
    query.read(10 * PARTITIONS)
    query.planner.finish(query.finished)
    assert told(query) == dict.fromkeys(ALL, (10, 10, 0.0))
    wait_until(lambda: in_table(group) == dict.fromkeys(ALL, (10, 10)), "the table has that, too")
    assert {since(group, partition) for partition in ALL} == {None}


def test_a_batch_that_hangs_falls_further_behind_and_the_next_owner_knows_since_when(group: Group) -> None:
    hanging = group.query("a")
    group.append(3, PARTITIONS)
    hanging.batch()
    group.append(4, PARTITIONS)
    wait_until(lambda: in_table(group) == dict.fromkeys(ALL, (0, 7)), "the table knows while the batch runs")
    check_since(group, "0", 0, 7)
    known = {partition: since(group, partition) for partition in ALL}
    hanging.stop()
    later = group.query("b")
    wait_until(lambda: all(lease.owner == "b" and lease.renewal for lease in group.leases().values()), "it renews")
    assert {p: each[:2] for p, each in told(later).items()} == dict.fromkeys(ALL, (0, 7))
    assert {partition: since(group, partition) for partition in ALL} == known


@pytest.fixture
def _close_kept() -> Iterator[None]:
    yield
    RECEIVERS.close()


@pytest.mark.usefixtures("_close_kept")
@pytest.mark.parametrize("tells_start", [True, False], ids=["spark 4.2", "spark 4.1"])
def test_progress_reports_count_a_backlog_whose_age_is_unknown(group: Group, tells_start: bool) -> None:
    """By the names of Spark's Kafka source: the events after the batch's end."""
    group.append(6, PARTITIONS)
    last_ms = counted(group.emulator, "1", 6)[5]
    reader = StreamReader(hub_options(group.emulator, startingPosition="earliest", maxEventsPerTrigger=PARTITIONS * 3))

    def latest() -> dict[str, Any]:
        return reader.latestOffset(start, reader.getDefaultReadLimit()) if tells_start else reader.latestOffset()

    try:
        start = reader.initialOffset()
        for first in (0, 3):
            end = latest()
            reported = reader.reportLatestOffset() if tells_start else end
            assert reported is not None
            left = {"minOffsetsBehindLatest": 3 - first, "maxOffsetsBehindLatest": 3 - first}
            assert reported.items() >= {**left, "avgOffsetsBehindLatest": 3.0 - first}.items()
            assert reader._planner is not None
            assert reader._planner._keeper.lags()["1"].unread_since_ms is None
            for task in reader.partitions(start, end):
                assert isinstance(task, Task)
                assert sum(batch.num_rows for batch in reader.read(task)) > 0
            start = end
        latest()
        lag = reader._planner._keeper.lags()["1"]
        assert (lag.next, lag.events, lag.unread_since_ms) == (6, 0, None)
        assert reader._planner._hub.lag("1", 5).unread_since_ms == last_ms
    finally:
        reader.stop()
