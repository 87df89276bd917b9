"""Lag as reported by the driver, the lease table, and Spark's progress reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.query.control_socket import send
from spark_ehbalance.query.receivers import RECEIVERS
from spark_ehbalance.spark.datasource import StreamReader, Task
from tests.query.queries import Group, Query
from tests.query.support import hub_options
from tests.waiting import wait_until

#: Milliseconds between two polls of a partition, including the delay of a busy machine.
POLL = 2500

ALL = ("0", "1")
PARTITIONS = len(ALL)


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, PARTITIONS)
    yield made
    made.close()
    RECEIVERS.close()


def lags(query: Query) -> dict[str, tuple[int, int, float | None]]:
    """The planner's answer to the driver: (`next`, `end`, seconds behind) of each partition."""
    assert query.planner.address is not None
    answer = send(query.planner.address, {"lag": True})
    assert isinstance(answer, dict)
    return {partition: tuple(lag) for partition, lag in answer["lag"].items()}


def in_table(group: Group) -> dict[str, tuple[int, int]]:
    """Each partition's (`next`, `end`) according to the lease table."""
    lags = {partition: lease.current_lag for partition, lease in group.leases().items()}
    return {partition: (lag.next, lag.end) for partition, lag in lags.items() if lag is not None}


def since(group: Group) -> dict[str, int | None]:
    """The enqueue time of each partition's next event, in ms since 1970, according to the lease table."""
    return {
        partition: lease.current_lag and lease.current_lag.unread_since_ms
        for partition, lease in group.leases().items()
    }


def test_lag_is_reported_while_reading_and_while_idle(group: Group) -> None:
    query = group.query()
    assert lags(query) == dict.fromkeys(ALL, (0, 0, 0.0))
    sent_ms = 1000 * time.time()
    group.append(10, PARTITIONS)
    query.run(query.batch(limit=4 * PARTITIONS))
    assert {p: lag[:2] for p, lag in lags(query).items()} == dict.fromkeys(ALL, (0, 10)), "the sink is not finished"
    query.planner.finish(query.finished)
    assert {p: lag[:2] for p, lag in lags(query).items()} == dict.fromkeys(ALL, (4, 10))
    wait_until(lambda: in_table(group) == dict.fromkeys(ALL, (4, 10)), "the table has it")
    known, before, seconds = since(group)["1"], time.time(), lags(query)["1"][2]
    assert known is not None
    assert seconds is not None
    assert sent_ms - POLL <= known <= sent_ms + 1000
    assert before - seconds - 0.01 <= known / 1000 <= time.time() - seconds + 0.01
    query.read(10 * PARTITIONS)
    query.planner.finish(query.finished)
    assert lags(query) == dict.fromkeys(ALL, (10, 10, 0.0))
    wait_until(lambda: in_table(group) == dict.fromkeys(ALL, (10, 10)), "the table has that, too")
    assert since(group) == dict.fromkeys(ALL)


@pytest.mark.parametrize("passes_start", [True, False], ids=["spark 4.2", "spark 4.1"])
def test_progress_reports_count_a_backlog_whose_age_is_unknown(group: Group, passes_start: bool) -> None:
    """The report uses the Kafka source's names for the events after the end of the batch."""
    group.append(6, PARTITIONS)
    reader = StreamReader(hub_options(group.emulator, startingPosition="earliest", maxEventsPerTrigger=PARTITIONS * 3))

    def latest() -> dict[str, Any]:
        return reader.latestOffset(start, reader.getDefaultReadLimit()) if passes_start else reader.latestOffset()

    try:
        start = reader.initialOffset()
        for left in (3, 0):
            end = latest()
            reported = reader.reportLatestOffset() if passes_start else end
            assert reported is not None
            behind = {"minOffsetsBehindLatest": left, "maxOffsetsBehindLatest": left, "avgOffsetsBehindLatest": left}
            assert reported.items() >= behind.items()
            assert reader._planner is not None
            assert reader._planner.parts[0].lags()["1"].unread_since_ms is None
            for task in reader.partitions(start, end):
                assert isinstance(task, Task)
                assert sum(batch.num_rows for batch in reader.read(task)) > 0
            start = end
        latest()
        lag = reader._planner.parts[0].lags()["1"]
        assert (lag.next, lag.events, lag.unread_since_ms) == (6, 0, None)
    finally:
        reader.stop()
