"""Reading several partitions in one task: none waits for another, whatever happens to one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.receiver import Receiver
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query.concurrent_reader import Reader, read_together
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import RECEIVERS
from tests.query.support import HUB, HeldLease, hub_options

PARTITIONS, EVENTS = 4, 500

Numbered = tuple[str, int]


# --- any readers -----------------------------------------------------------------------------------------------


def counting(name: str, count: int) -> Reader[Numbered]:
    def read(_: threading.Event) -> Generator[Numbered, None, None]:
        for number in range(count):
            yield name, number

    return read


@given(st.lists(st.integers(0, 20), max_size=6))
def test_everything_once_and_in_each_reader_s_order(counts: list[int]) -> None:
    got = list(read_together([counting(str(index), count) for index, count in enumerate(counts)]))
    for index, count in enumerate(counts):
        assert [number for name, number in got if name == str(index)] == list(range(count))
    assert len(got) == sum(counts)


@pytest.mark.parametrize("others", [0, 1, 5])
def test_an_error_is_raised_and_the_others_end(others: int) -> None:
    closed: list[int] = []

    def endless(index: int, ended: threading.Event) -> Generator[Numbered, None, None]:
        try:
            while not ended.is_set():
                yield "other", index
        finally:
            closed.append(index)

    def failing(_: threading.Event) -> Generator[Numbered, None, None]:
        yield "failing", 0
        raise HubUnavailableError("partition 7 is away")

    readers: Sequence[Reader[Numbered]] = [failing, *(partial(endless, index) for index in range(others))]
    with pytest.raises(HubUnavailableError, match="partition 7 is away"):
        for _ in read_together(readers):
            pass
    assert sorted(closed) == list(range(others))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_closing_ends_all_readers(count: int) -> None:
    closed: list[int] = []

    def waiting(index: int, ended: threading.Event) -> Generator[Numbered, None, None]:
        try:
            yield "event", index
            ended.wait()
        finally:
            closed.append(index)

    reading = read_together([partial(waiting, index) for index in range(count)])
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert sorted(closed) == list(range(count))


def test_a_waiting_reader_does_not_block_others() -> None:
    go_on = threading.Event()

    def slow(_: threading.Event) -> Generator[Numbered, None, None]:
        go_on.wait()
        yield "slow", 0

    reading = read_together([slow, counting("quick", 100)])
    assert [next(reading) for _ in range(100)] == [("quick", number) for number in range(100)]
    go_on.set()
    assert list(reading) == [("slow", 0)]


# --- partitions of a hub ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> Iterator[None]:
    """Partitions with events; afterwards the worker's receivers are closed."""
    emulator.add_hub(HUB, PARTITIONS)
    for partition in range(PARTITIONS):
        emulator.append(HUB, partition, [b"event"] * EVENTS)
    yield
    RECEIVERS.close()


def reading(options: Options, *, owner: str | None = None, level: int | None = None) -> Iterator[Numbered]:
    """The (partition, sequence number) of all events, as they come."""

    def numbers(partition: str, ended: threading.Event) -> Generator[Numbered, None, None]:
        for batch in read_range(options, Range(partition, level or 0, 0, EVENTS), owner, level, ended):
            for number in sequence_numbers(batch).to_pylist():
                yield partition, number

    return read_together([partial(numbers, str(partition)) for partition in range(PARTITIONS)])


def everything(*partitions: int) -> dict[str, list[int]]:
    return {str(partition): list(range(EVENTS)) for partition in partitions}


def by_partition(got: Sequence[Numbered]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition, number in got:
        found.setdefault(partition, []).append(number)
    return found


def test_a_task_closed_early_can_be_run_again(emulator: Emulator) -> None:
    options = hub_options(emulator)
    emulator.pause(HUB, 1)
    events = reading(options, level=3)
    next(events)
    events.close()  # type: ignore[attr-defined]
    emulator.resume(HUB, 1)
    assert by_partition(list(reading(options, level=3))) == everything(*range(PARTITIONS))
    assert [emulator.readers(HUB, partition) for partition in range(PARTITIONS)] == [[3]] * PARTITIONS


def test_a_lost_lease_ends_only_its_own_range(
    emulator: Emulator, tmp_path: Path, rival: Callable[..., Receiver]
) -> None:
    held = HeldLease(emulator, tmp_path / "leases", epoch=5, partitions=PARTITIONS)
    held.claim(partition="1")
    rival(6, "1")
    assert by_partition(list(reading(hub_options(emulator, leaseTable=held.path), owner="me", level=5))) == everything(
        0, 2, 3
    )
