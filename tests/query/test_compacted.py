"""Ranges in a compacted event hub: a range whose last events are gone ends, but late events are waited for."""

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

#: The size in bytes after which a delayed emulator pauses before the next event, and that delay in seconds: longer than
#: a receiver waits, and longer than the tail must be quiet.
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


class TailChecks:
    """Records the result of every check of the tail; `before` and `after` are called around each check."""

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
def tail_checks(monkeypatch: pytest.MonkeyPatch) -> TailChecks:
    made = TailChecks()
    monkeypatch.setattr(range_reader, "is_compacted_away", made.look)
    return made


def test_range_whose_last_events_were_superseded_ends(
    emulator: Emulator, worker: CountedReceivers, tail_checks: TailChecks
) -> None:
    """Later events prove at once that the rest of the range is gone."""
    send(emulator, 5)
    emulator.compact(HUB, 0, 0, 20)
    assert read(options_of(emulator), 0, 20, worker) == []
    assert read(options_of(emulator), 20, 25, worker) == list(range(20, 25))
    assert tail_checks.found == []


@pytest.mark.parametrize("level", [None, 3])
def test_range_ending_in_a_removed_tombstone_ends(
    emulator: Emulator, worker: CountedReceivers, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    send(emulator, 3)
    emulator.compact(HUB, 0, 0, 18)
    emulator.compact(HUB, 0, 20, 23)
    assert read(options_of(emulator), 0, 23, worker, level=level) == [18, 19]
    assert "neither events 20 to 22 nor any later events exist, although earlier events can be received" in caplog.text
    send(emulator, 7)
    assert read(options_of(emulator), 23, 30, worker, level=level) == list(range(23, 30))


def test_range_without_remaining_events_ends_although_the_previous_event_is_far_away(
    emulator: Emulator, worker: CountedReceivers
) -> None:
    send(emulator, 100)
    emulator.compact(HUB, 0, 7, 120)
    assert read(options_of(emulator), 90, 120, worker) == []


def test_reader_waits_for_a_hub_that_delivers_nothing(
    emulator: Emulator, worker: CountedReceivers, tail_checks: TailChecks
) -> None:
    emulator.pause(HUB, 0)
    tail_checks.after = lambda: emulator.resume(HUB, 0)
    assert read(options_of(emulator), 10, 20, worker) == list(range(10, 20))
    assert tail_checks.found == [False]


def test_reader_waits_for_a_hub_that_delivers_one_event_at_a_time(
    emulator: Emulator, worker: CountedReceivers, tail_checks: TailChecks
) -> None:
    send(emulator, 4, bytes(LARGE))
    emulator.delay(DELAY, HUB, 0)
    assert read(options_of(emulator), 22, 24, worker) == [22, 23]
    assert {*tail_checks.found} == {False}


def test_reader_waits_for_a_hub_that_stops_after_the_previous_event(
    emulator: Emulator, worker: CountedReceivers, tail_checks: TailChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub resumes delivery to the second receiver."""
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
    assert {*tail_checks.found} == {False}


def test_range_without_events_fails_until_a_later_event_arrives(emulator: Emulator, worker: CountedReceivers) -> None:
    emulator.compact(HUB, 0, 0, 20)
    options = options_of(emulator, receiverTimeout="2 s")
    reason = re.compile("at sequence number 19 in the range 19 to 19")
    with raises(HubUnavailableError, "EHB_PARTITION_SILENT", reason=reason):
        read(options, 19, 20, worker)
    send(emulator, 1)
    assert read(options, 19, 20, worker) == []
    assert read(options, 20, 21, worker) == [20]


def test_check_of_the_tail_ends_when_the_next_owner_reads(
    emulator: Emulator,
    worker: CountedReceivers,
    tail_checks: TailChecks,
    rival: Callable[[int], Receiver],
    tmp_path: Path,
) -> None:
    """No event counts as gone, and the receivers do not keep disconnecting one another."""
    emulator.compact(HUB, 0, 15, 20)
    held = HeldLease(emulator, tmp_path / "leases", epoch=3)
    options = options_of(emulator, leaseTable=held.path)
    tail_checks.before = lambda: (held.claim(), rival(4))
    assert numbers(read_range(options, OffsetRange("0", 3, 10, 20, 9), "me", 3, receivers=worker)) == list(
        range(10, 15)
    )
    assert emulator.readers(HUB, 0) == [4]


def test_check_of_the_tail_ends_with_its_task(
    emulator: Emulator, worker: CountedReceivers, tail_checks: TailChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_OPENING", 60.0)
    emulator.pause(HUB, 0)
    ended = threading.Event()
    tail_checks.before = ended.set
    begun = time.monotonic()
    assert not list(read_range(options_of(emulator), OffsetRange("0", 0, 10, 20), None, 3, ended, receivers=worker))
    assert tail_checks.found == [False]
    assert time.monotonic() - begun < compaction._OPENING
