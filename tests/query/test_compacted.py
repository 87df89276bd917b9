"""Ranges of a compacted event hub whose last events are gone: they end, and what is only late is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub import tail
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query import range_reader
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from tests.query.support import HUB, CountedReceivers, HeldLease, hub_options, numbers
from tests.waiting import wait_until

#: More than a batch may take here: a range whose end is gone must not take as long.
TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_SILENCE", 0.5)
    monkeypatch.setattr(tail, "_QUIET", 1.5)
    monkeypatch.setattr(tail, "_OPENING", 2.5)


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> None:
    """Partition 0 with 20 events."""
    emulator.add_hub(HUB, 2)
    send(emulator, range(20))


def send(emulator: Emulator, sent: range) -> None:
    emulator.append(HUB, 0, [b"%d" % number for number in sent])


def options_of(emulator: Emulator, **more: object) -> Options:
    return hub_options(emulator, compacted=True, **more)


def read(
    options: Options,
    start: int,
    end: int,
    worker: CountedReceivers,
    level: int | None = 3,
    got: list[int] | None = None,
) -> list[int]:
    """The sequence numbers that are read, also in `got`."""
    got = [] if got is None else got
    for batch in read_range(options, Range("0", 0, start, end), None, level, receivers=worker):
        got += sequence_numbers(batch).to_pylist()
    return got


def reading(options: Options, start: int, end: int, worker: CountedReceivers) -> tuple[threading.Thread, list[int]]:
    """A thread that reads, and the sequence numbers that it has read."""
    got: list[int] = []
    thread = threading.Thread(target=read, args=(options, start, end, worker, 3, got))
    thread.start()
    return thread, got


def test_the_end_is_replaced_by_later_events(emulator: Emulator, worker: CountedReceivers) -> None:
    """They tell at once that nothing of the range is left."""
    send(emulator, range(20, 25))
    emulator.compact(HUB, 0, 0, 20)
    begun = time.monotonic()
    assert read(options_of(emulator), 0, 20, worker) == []
    assert read(options_of(emulator), 20, 25, worker) == list(range(20, 25))
    assert time.monotonic() - begun < TIMEOUT / 4


@pytest.mark.parametrize("level", [None, 3])
def test_the_end_is_a_tombstone_that_was_removed(
    emulator: Emulator, worker: CountedReceivers, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    send(emulator, range(20, 23))
    emulator.compact(HUB, 0, 0, 18)
    emulator.compact(HUB, 0, 20, 23)
    begun = time.monotonic()
    assert read(options_of(emulator), 0, 23, worker, level=level) == [18, 19]
    assert time.monotonic() - begun < TIMEOUT / 2
    assert "events 20 to 22 do not exist, and none after them, although earlier ones come" in caplog.text
    send(emulator, range(23, 30))
    assert read(options_of(emulator), 23, 30, worker, level=level) == list(range(23, 30))


def test_nothing_of_the_range_is_left_and_the_event_before_it_is_far_away(
    emulator: Emulator, worker: CountedReceivers
) -> None:
    emulator.append(HUB, 0, [b""] * 3000)
    emulator.compact(HUB, 0, 7, 3020)
    assert read(options_of(emulator), 2990, 3020, worker) == []


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was found at the tail."""
    found: list[bool] = []

    def look(*arguments: Any) -> bool:
        found.append(tail.is_bare(*arguments))
        return found[-1]

    monkeypatch.setattr(range_reader, "is_bare", look)
    return found


def test_a_hub_that_delivers_nothing_is_waited_for(
    emulator: Emulator, worker: CountedReceivers, looks: list[bool]
) -> None:
    emulator.pause(HUB, 0)
    thread, got = reading(options_of(emulator), 10, 20, worker)
    wait_until(lambda: looks, "the tail is looked at")
    emulator.resume(HUB, 0)
    thread.join(TIMEOUT)
    assert got == list(range(10, 20))
    assert not any(looks)


#: Bytes after which the emulator waits before it sends the next event, if it has a delay.
LARGE = 1 << 20


def test_a_hub_whose_events_come_one_by_one_is_waited_for(
    emulator: Emulator, worker: CountedReceivers, looks: list[bool]
) -> None:
    """Each of them takes longer than the tail is quiet."""
    emulator.append(HUB, 0, [bytes(LARGE)] * 4)
    emulator.delay(2.0, HUB, 0)
    assert read(options_of(emulator), 22, 24, worker) == [22, 23]
    assert looks
    assert not any(looks)


def test_a_hub_that_stops_after_the_event_before_is_waited_for(
    emulator: Emulator, worker: CountedReceivers, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delivers again to the second receiver."""
    emulator.append(HUB, 0, [bytes(LARGE)] * 4)
    opened: list[int] = []

    class Stopping(Receiver):
        def __init__(self, address: PartitionAddress, start: int, **settings: Any) -> None:
            super().__init__(address, start, **settings)
            opened.append(start)
            emulator.resume(HUB, 0)

        def receive(self, *arguments: Any) -> pa.RecordBatch:
            batch = super().receive(*arguments)
            if batch.num_rows and len(opened) == 1:
                emulator.pause(HUB, 0)
                emulator.delay(0)
            return batch

    monkeypatch.setattr(tail, "Receiver", Stopping)
    emulator.pause(HUB, 0)
    emulator.delay(1.0, HUB, 0)
    thread, got = reading(options_of(emulator), 22, 24, worker)
    thread.join(TIMEOUT)
    assert opened[:2] == [21, 21]
    assert got == [22, 23]
    assert not any(looks)


@pytest.mark.parametrize("start", [0, 19])
def test_where_no_event_is_left_at_all_the_error_says_what_helps(
    emulator: Emulator, worker: CountedReceivers, start: int
) -> None:
    emulator.compact(HUB, 0, 0, 20)
    options = options_of(emulator, receiverTimeout="4 s")
    with pytest.raises(HubUnavailableError, match="can end once another event is sent"):
        read(options, start, 20, worker)
    send(emulator, range(20, 21))
    assert read(options, start, 20, worker) == []
    assert read(options, 20, 21, worker) == [20]


def test_the_next_owner_ends_a_look_at_the_tail(
    emulator: Emulator,
    worker: CountedReceivers,
    rival: Callable[[int], Receiver],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Nothing is taken for gone, and the receivers do not fight for the partition."""
    emulator.compact(HUB, 0, 15, 20)
    held = HeldLease(emulator, tmp_path / "leases", epoch=3)
    options = options_of(emulator, leaseTable=held.path)

    def look(*arguments: Any) -> bool:
        held.claim()
        rival(4)
        return tail.is_bare(*arguments)

    monkeypatch.setattr(range_reader, "is_bare", look)
    assert numbers(read_range(options, Range("0", 3, 10, 20, 9), "me", 3, receivers=worker)) == list(range(10, 15))
    assert emulator.readers(HUB, 0) == [4]


def test_a_look_at_the_tail_ends_with_its_task(
    emulator: Emulator, worker: CountedReceivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.pause(HUB, 0)
    ended, begun = threading.Event(), 0.0

    def look(*arguments: Any) -> bool:
        nonlocal begun
        begun = time.monotonic()
        ended.set()
        return tail.is_bare(*arguments)

    monkeypatch.setattr(range_reader, "is_bare", look)
    assert not list(read_range(options_of(emulator), Range("0", 0, 10, 20), None, 3, ended, receivers=worker))
    assert 0 < time.monotonic() - begun < tail._OPENING
