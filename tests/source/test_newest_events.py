"""Tasks tell the planner of the newest events that they have heard of, where the hub cannot be asked often enough."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub import watcher
from spark_ehbalance.hub.poll_schedule import PollSchedule
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.hub.wire.tracking import Newest
from spark_ehbalance.source import newest_events
from spark_ehbalance.source.datasource import StreamReader, Task
from spark_ehbalance.source.newest_events import SLOW, ListenerAddress, NewestEventsListener, Tells
from spark_ehbalance.source.offsets import StreamOffset
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.receivers import RECEIVERS, Key
from tests.source.support import HUB, CountedReceivers, hub_options, numbers
from tests.waiting import wait_until

#: Partitions, and how often the hub is asked about one: once a minute about each.
MANY, REQUESTS_A_SECOND = 12, 0.2

FIRST = Newest(7, "seven", 1_790_000_000_000)


class Heard:
    """What a listener was told."""

    def __init__(self) -> None:
        self.found: dict[str, Newest] = {}
        self.events: set[tuple[str, int, int]] = set()

    def __call__(self, told: Mapping[str, Newest]) -> None:
        self.found.update(told)

    def read(self, *event: Any) -> None:
        self.events.add(event)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def address(heard: Heard) -> Iterator[ListenerAddress]:
    listener = NewestEventsListener(heard, heard.read, lambda: 2 * SLOW, "localhost")
    found = listener.address()
    assert found is not None
    yield found
    listener.close()


def raw(address: ListenerAddress, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for each in datagrams:
            out.sendto(each, (address.host, address.port))


def test_news_of_many_partitions_arrive(heard: Heard, address: ListenerAddress) -> None:
    sent = {str(number): Newest(number, f"offset {number}", 1) for number in range(100)}
    newest_events.send(address, sent)
    wait_until(lambda: heard.found == sent, "all news have come")


def test_what_is_not_signed_counts_for_nothing_and_ends_nothing(heard: Heard, address: ListenerAddress) -> None:
    newest_events.send(replace(address, key=b"another"), {"0": FIRST})
    raw(address, b"", b"x", b"\0" * 32 + b'{"0": [1, "1", 1]}', b"\0" * 60_000)
    strange = (b"[]", b'{"0": [5]}', b'{"0": [5, "5", 1, 1]}', b'{"0": 7}', b'{"0": [1e999, 1]}', b"[" * 4000, b"x")
    for text in strange:  # as another version may write
        raw(address, hmac.digest(address.key, text, "sha256") + text)
    newest_events.send(address, {"1": FIRST})
    wait_until(lambda: heard.found, "the signed news have come")
    assert heard.found == {"1": FIRST}


def test_to_a_planner_that_is_gone_nothing_is_told(heard: Heard) -> None:
    listener = NewestEventsListener(heard, heard.read, lambda: 2 * SLOW, "localhost")
    address = listener.address()
    assert address is not None
    listener.close()
    listener.close()
    assert listener.address() is None
    newest_events.send(address, {"0": FIRST})
    assert not heard.found


def test_without_a_port_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.1")  # an address that no host has
    listener = NewestEventsListener(print, print, lambda: 2 * SLOW, "localhost")
    assert listener.address() is None
    assert listener.address() is None
    assert caplog.text.count("no port") == 1
    assert "the hub is asked, which takes longer" in caplog.text


def test_the_key_is_not_shown(address: ListenerAddress) -> None:
    assert "key" not in repr(address)
    assert "key" not in repr(Task((), None, address))


@pytest.fixture
def _close_kept() -> Iterator[None]:
    yield
    RECEIVERS.close()


def test_a_kept_receiver_tells_when_there_is_another_event(
    emulator: Emulator, heard: Heard, address: ListenerAddress, worker: CountedReceivers
) -> None:
    emulator.add_hub(HUB, 2)
    options = hub_options(emulator)

    def read(start: int, end: int) -> list[int]:
        return numbers(read_range(options, Range("1", 0, start, end), None, 5, receivers=worker, tells=Tells(address)))

    emulator.append(HUB, 1, [b"x"] * 4)
    assert read(0, 3) == [0, 1, 2]
    wait_until(lambda: heard.found.keys() == {"1"} and heard.found["1"].sequence_number == 3, "what was there")
    assert read(3, 4) == [3], "the event that was sent ahead"
    heard.found.clear()
    emulator.append(HUB, 1, [b"y"])
    wait_until(lambda: heard.found.keys() == {"1"}, "the next event is told of")
    emulator.append(HUB, 1, [b"y"] * 500)
    assert read(4, 505) == [*range(4, 505)]
    assert worker.opened == [0], "one receiver has done all that"
    wait_until(lambda: heard.found["1"].sequence_number == 504, "the newest of all")


def test_what_was_sent_ahead_while_it_was_put_away_is_told(
    emulator: Emulator, heard: Heard, address: ListenerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"x"])
    receivers, is_usable = CountedReceivers(), Receiver.is_usable

    def slowly(receiver: Receiver) -> bool:
        usable = is_usable(receiver)
        emulator.append(HUB, 0, [b"y"] if receiver.newest == first else [])
        return usable and wait_until(lambda: is_usable(receiver) and receiver.newest != first, "the event has come")

    key = Key(PartitionAddress(hub_options(emulator).connection, "$Default", "0"), 5, RowFormat(), address)
    receiver = receivers.take(key, 0, 10)
    try:
        wait_until(lambda: receiver.receive(1, 1.0, 1).num_rows, "the first event has come")
        first = receiver.newest
        monkeypatch.setattr(Receiver, "is_usable", slowly)
        receivers.keep(key, receiver)
        wait_until(lambda: heard.found.get("0") == receiver.newest, "it is told")
    finally:
        monkeypatch.undo()
        receivers.close()


@pytest.mark.usefixtures("_close_kept")
def test_what_the_tasks_of_a_batch_hear_is_known_to_the_next_one(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "PollSchedule", partial(PollSchedule, most_requests=REQUESTS_A_SECOND))
    emulator.add_hub(HUB, MANY)
    for partition in range(MANY):
        emulator.append(HUB, partition, [b"x"] * 2)
    reader = StreamReader(hub_options(emulator, startingPosition="earliest", maxEventsPerTrigger=MANY))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        ranges = StreamOffset.from_json(end).ranges
        assert {p: each.end for p, each in ranges.items()} == {str(p): 1 for p in range(MANY)}
        for partition in range(MANY):
            emulator.append(HUB, partition, [b"y"] * 3)  # after the hub was asked
        for task in reader.partitions(start, end):
            assert isinstance(task, Task)
            assert task.news is not None
            assert sum(batch.num_rows for batch in reader.read(task)) == len(task.ranges)
        planner = reader._planner
        assert planner is not None
        wait_until(lambda: set(planner.latest().values()) == {5}, "all news have come", 30)
    finally:
        reader.stop()


@pytest.mark.usefixtures("_close_kept")
def test_a_hub_with_few_partitions_is_asked(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 4)
    emulator.append(HUB, 0, [b"x"])
    reader = StreamReader(hub_options(emulator, startingPosition="earliest"))
    try:
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert [task.news for task in tasks if isinstance(task, Task)] == [None]
    finally:
        reader.stop()
