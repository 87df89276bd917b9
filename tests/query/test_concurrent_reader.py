"""Reading several partitions in one task: none waits for another, whatever happens to one of them."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query.concurrent_reader import Reader, read_together
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import RECEIVERS
from tests.query.support import HUB, hub_options

PARTITIONS, EVENTS = 4, 500

Numbered = tuple[str, int]


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
@pytest.mark.parametrize("fails", [True, False])
def test_an_error_and_closing_end_all_readers(others: int, fails: bool) -> None:
    closed: list[int] = []

    def waiting(index: int, ended: threading.Event) -> Generator[Numbered, None, None]:
        try:
            yield "event", index
            if fails and index == 0:
                raise HubUnavailableError("partition 7 is away")
            ended.wait()
        finally:
            closed.append(index)

    reading = read_together([partial(waiting, index) for index in range(1 + others)])
    if fails:
        with pytest.raises(HubUnavailableError, match="partition 7 is away"):
            list(reading)
    else:
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    assert sorted(closed) == list(range(1 + others))


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


def reading(options: Options, owner: str | None, level: int) -> Iterator[Numbered]:
    """The (partition, sequence number) of all events, as they come."""

    def numbers(partition: str, ended: threading.Event) -> Generator[Numbered, None, None]:
        for batch in read_range(options, Range(partition, level, 0, EVENTS), owner, level, ended):
            for number in sequence_numbers(batch).to_pylist():
                yield partition, number

    return read_together([partial(numbers, str(partition)) for partition in range(PARTITIONS)])


def everything(*partitions: int) -> list[Numbered]:
    return [(str(partition), number) for partition in partitions for number in range(EVENTS)]


def test_a_task_closed_early_can_be_run_again(emulator: Emulator) -> None:
    options = hub_options(emulator)
    emulator.pause(HUB, 1)
    events = reading(options, None, 3)
    next(events)
    events.close()  # type: ignore[attr-defined]
    emulator.resume(HUB, 1)
    assert sorted(reading(options, None, 3)) == everything(*range(PARTITIONS))
    assert [emulator.readers(HUB, partition) for partition in range(PARTITIONS)] == [[3]] * PARTITIONS
