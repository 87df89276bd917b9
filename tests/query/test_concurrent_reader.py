"""Reading several partitions in one task: a failing or slow partition does not hold up the others."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.query.concurrent_reader import Reader, read_concurrently
from tests.raising import raises

Numbered = tuple[str, int]


def counting(name: str, count: int) -> Reader[Numbered]:
    def read(_: threading.Event) -> Generator[Numbered, None, None]:
        for number in range(count):
            yield name, number

    return read


@given(st.lists(st.integers(0, 20), max_size=6))
def test_batches_arrive_once_and_in_reader_order(counts: list[int]) -> None:
    got = list(read_concurrently([counting(str(index), count) for index, count in enumerate(counts)]))
    for index, count in enumerate(counts):
        assert [number for name, number in got if name == str(index)] == list(range(count))
    assert len(got) == sum(counts)


@pytest.mark.parametrize("others", [0, 1, 5])
@pytest.mark.parametrize("fails", [True, False])
def test_error_or_close_ends_all_readers(others: int, fails: bool) -> None:
    closed: list[int] = []

    def waiting(index: int, ended: threading.Event) -> Generator[Numbered, None, None]:
        try:
            yield "event", index
            if fails and index == 0:
                raise HubUnavailableError("EHB_HUB_UNREACHABLE", what="Partition 7", reason="timeout")
            ended.wait()
        finally:
            closed.append(index)

    reading = read_concurrently([partial(waiting, index) for index in range(1 + others)])
    if fails:
        with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what="Partition 7"):
            list(reading)
    else:
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    assert sorted(closed) == list(range(1 + others))


def test_waiting_reader_does_not_block_others() -> None:
    go_on = threading.Event()

    def slow(_: threading.Event) -> Generator[Numbered, None, None]:
        go_on.wait()
        yield "slow", 0

    reading = read_concurrently([slow, counting("quick", 100)])
    assert [next(reading) for _ in range(100)] == [("quick", number) for number in range(100)]
    go_on.set()
    assert list(reading) == [("slow", 0)]
