"""`ehbalance seek --to TIME --force` while a query with keeper, planner and readers reads the partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query import receivers
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.range_reader import Batches, read_range
from tests.ops.groups import Group
from tests.query.queries import Query
from tests.query.support import HUB, hub_options
from tests.waiting import wait_until

EVENTS = 2000


class Reading:
    """A query with one partition and its executors; `times` are the enqueued times of every thousandth event."""

    def __init__(self, emulator: Emulator, table: Path) -> None:
        emulator.add_hub(HUB, 1)
        self.times = [self._append(emulator) for _ in range(EVENTS // 1000)]
        raw = {"leaseTable": table, "startingPosition": "earliest", "prefetch": 100, "balanceInterval": "1 s"}
        self.options = hub_options(emulator, **raw)
        self.query = Query(start_planner(self.options, "ann"), "ann")

    def _append(self, emulator: Emulator) -> datetime:
        last = emulator.partition_state(HUB, 0).last_enqueued_ms or 0
        wait_until(lambda: time.time_ns() // 1_000_000 > last, "no other event has that time")
        emulator.append(HUB, 0, [b"x"] * 1000)
        enqueued = emulator.partition_state(HUB, 0).last_enqueued_time
        assert enqueued is not None
        return enqueued

    def read(self, wanted: Range) -> Iterator[int]:
        for batch in read_range(self.options, wanted, "ann", wanted.epoch, batches=Batches(max_rows=100)):
            yield from sequence_numbers(batch).to_pylist()

    def batch(self, limit: int) -> Range:
        """Read the next batch, which is then finished."""
        (planned,) = self.query.planner.ranges(self.query.batch(limit))
        return planned

    def finish(self) -> None:
        self.query.finished = self.query.logged


@pytest.fixture
def reading(emulator: Emulator, tmp_path: Path) -> Iterator[Reading]:
    made = Reading(emulator, tmp_path / "leases")
    yield made
    made.query.stop()
    receivers.RECEIVERS.close()


def seek(group: Group, moment: datetime) -> str:
    return group.done("seek", "0", "--force", "--to", moment.isoformat())


@pytest.mark.parametrize(("to", "first"), [(1, 1000), (0, 0)], ids=["forward", "back"])
@pytest.mark.parametrize("seeks", [1, 3])
def test_the_running_batch_is_complete_and_the_next_one_begins_at_the_time(
    reading: Reading, group: Group, to: int, first: int, seeks: int
) -> None:
    in_flight = reading.batch(600)
    rows = reading.read(in_flight)
    got = [next(rows)]
    for _ in range(seeks):
        assert seek(group, reading.times[to]) == f"Partition 0 continues at sequence number {first}.\n"
    wait_until(
        lambda: reading.query.planner.holdings()["0"].epoch == in_flight.epoch + seeks, "the query has learnt of it"
    )
    assert got + list(rows) == list(range(600))
    reading.finish()
    assert list(reading.read(reading.batch(50))) == list(range(first, first + 50))


def test_seeks_between_consecutive_batches(reading: Reading, group: Group) -> None:
    read: list[int] = []
    last_error: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            while not ended.is_set():
                if reading.query.plan(100) is not None:
                    for wanted in reading.query.planner.ranges(reading.query.logged):
                        read.extend(reading.read(wanted))
                    reading.finish()
        except BaseException as error:
            last_error.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        for to in (1, 0, 0, 1, 0):
            seek(group, reading.times[to])
        before = len(read)
        wait_until(lambda: last_error or read[before:].count(EVENTS - 1), "all is read to the end")
    finally:
        ended.set()
        running.join()
    assert last_error == []
    jumps = {after for last, after in pairwise(read) if after != last + 1}
    assert jumps <= {0, 1000}, "nothing is left out but by a seek"
