"""Ranges of a compacted event hub whose last events are gone: they end, and what is only late is waited for."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub import compaction
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.query import range_reader
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from tests.query.support import HUB, CountedReceivers, HeldLease, hub_options, numbers
from tests.raising import raises

#: Bytes after which the emulator waits before it sends the next event, if it has a delay; and that delay in seconds,
#: longer than a receiver waits and than the tail is quiet.
LARGE, DELAY = 1 << 20, 1.3


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_SILENCE", 0.3)
    monkeypatch.setattr(compaction, "_QUIET", 0.7)
    monkeypatch.setattr(compaction, "_OPENING", 2.0)


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> None:
    """Partition 0 with 20 events."""
    emulator.add_hub(HUB, 2)
    send(emulator, 20)


def send(emulator: Emulator, count: int, body: bytes = b"x") -> None:
    emulator.append(HUB, 0, [body] * count)


def options_of(emulator: Emulator, **more: object) -> Options:
    return hub_options(emulator, compacted=True, **more)


def read(options: Options, start: int, end: int, worker: CountedReceivers, level: int | None = 3) -> list[int]:
    """The sequence numbers that are read."""
    return numbers(read_range(options, OffsetRange("0", 0, start, end), None, level, receivers=worker))


class Looks:
    """What was found at the compaction. `before` and `after` are called at each look."""

    def __init__(self) -> None:
        self.found: list[bool] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def look(self, *arguments: Any) -> bool:
        self.before()
        self.found.append(compaction.is_compacted_away(*arguments))
        self.after()
        return self.found[-1]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    made = Looks()
    monkeypatch.setattr(range_reader, "is_compacted_away", made.look)
    return made


def test_the_end_is_replaced_by_later_events(emulator: Emulator, worker: CountedReceivers, looks: Looks) -> None:
    """They prove at once that nothing of the range is left."""
    send(emulator, 5)
    emulator.compact(HUB, 0, 0, 20)
    assert read(options_of(emulator), 0, 20, worker) == []
    assert read(options_of(emulator), 20, 25, worker) == list(range(20, 25))
    assert looks.found == []


@pytest.mark.parametrize("level", [None, 3])
def test_the_end_is_a_tombstone_that_was_removed(
    emulator: Emulator, worker: CountedReceivers, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    send(emulator, 3)
    emulator.compact(HUB, 0, 0, 18)
    emulator.compact(HUB, 0, 20, 23)
    assert read(options_of(emulator), 0, 23, worker, level=level) == [18, 19]
    assert "events 20 to 22 do not exist, and none after them, although earlier ones come" in caplog.text
    send(emulator, 7)
    assert read(options_of(emulator), 23, 30, worker, level=level) == list(range(23, 30))


def test_nothing_of_the_range_is_left_and_the_event_before_it_is_far_away(
    emulator: Emulator, worker: CountedReceivers
) -> None:
    send(emulator, 100)
    emulator.compact(HUB, 0, 7, 120)
    assert read(options_of(emulator), 90, 120, worker) == []


def test_a_hub_that_delivers_nothing_is_waited_for(emulator: Emulator, worker: CountedReceivers, looks: Looks) -> None:
    emulator.pause(HUB, 0)
    looks.after = lambda: emulator.resume(HUB, 0)
    assert read(options_of(emulator), 10, 20, worker) == list(range(10, 20))
    assert looks.found == [False]


def test_a_hub_whose_events_come_one_by_one_is_waited_for(
    emulator: Emulator, worker: CountedReceivers, looks: Looks
) -> None:
    send(emulator, 4, bytes(LARGE))
    emulator.delay(DELAY, HUB, 0)
    assert read(options_of(emulator), 22, 24, worker) == [22, 23]
    assert {*looks.found} == {False}


def test_a_hub_that_stops_after_the_event_before_is_waited_for(
    emulator: Emulator, worker: CountedReceivers, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delivers again to the second receiver."""
    send(emulator, 4, bytes(LARGE))
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

    monkeypatch.setattr(compaction, "Receiver", Stopping)
    emulator.pause(HUB, 0)
    emulator.delay(DELAY, HUB, 0)
    assert read(options_of(emulator), 22, 24, worker) == [22, 23]
    assert opened[:2] == [21, 21]
    assert {*looks.found} == {False}


def test_range_without_events_fails_until_a_later_event_arrives(emulator: Emulator, worker: CountedReceivers) -> None:
    emulator.compact(HUB, 0, 0, 20)
    options = options_of(emulator, receiverTimeout="2 s")
    with raises(HubUnavailableError, "EHB_PARTITION_SILENT", reason=re.compile("at sequence number 19 of 19 to 19")):
        read(options, 19, 20, worker)
    send(emulator, 1)
    assert read(options, 19, 20, worker) == []
    assert read(options, 20, 21, worker) == [20]


def test_the_next_owner_ends_a_look_at_the_tail(
    emulator: Emulator, worker: CountedReceivers, looks: Looks, rival: Callable[[int], Receiver], tmp_path: Path
) -> None:
    """Nothing is taken for gone, and the receivers do not fight for the partition."""
    emulator.compact(HUB, 0, 15, 20)
    held = HeldLease(emulator, tmp_path / "leases", epoch=3)
    options = options_of(emulator, leaseTable=held.path)
    looks.before = lambda: (held.claim(), rival(4))
    assert numbers(read_range(options, OffsetRange("0", 3, 10, 20, 9), "me", 3, receivers=worker)) == list(
        range(10, 15)
    )
    assert emulator.readers(HUB, 0) == [4]


def test_a_look_at_the_tail_ends_with_its_task(
    emulator: Emulator, worker: CountedReceivers, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_OPENING", 60.0)
    emulator.pause(HUB, 0)
    ended = threading.Event()
    looks.before = ended.set
    begun = time.monotonic()
    assert not list(read_range(options_of(emulator), OffsetRange("0", 0, 10, 20), None, 3, ended, receivers=worker))
    assert looks.found == [False]
    assert time.monotonic() - begun < compaction._OPENING
