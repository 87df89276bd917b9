"""The first received event for each kind of starting position."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from spark_ehbalance.emulator import Emulator
from tests.emulator.clients import Reader, numbers, reader, refusal, wait_until

COUNT = 20


@pytest.fixture(scope="module")
def loaded() -> Iterator[Emulator]:
    """Partition 0 of `hub` has COUNT events with different times."""
    with Emulator({"hub": 1}) as running:
        for number in range(COUNT):
            before = running.partition_state("hub", 0).last_enqueued_ms
            wait_until(lambda before=before: before != _now_ms(), "the clock has moved on")
            running.append("hub", 0, [b"%d" % number])
        yield running


@pytest.fixture(scope="module")
def everything(loaded: Emulator) -> Reader:
    with reader(loaded.connection_string("hub")) as from_the_start:
        from_the_start.read(COUNT)
    return from_the_start


def _now_ms() -> int:
    return int(datetime.now(timezone.utc).timestamp() * 1000)


def _first(emulator: Emulator, start: str | int | datetime, inclusive: bool) -> int | None:
    with reader(emulator.connection_string("hub"), start=start, inclusive=inclusive) as started:
        return started.read(1)[0].sequence_number


def test_earliest_and_offsets_begin_at_0_and_jump(everything: Reader) -> None:
    assert numbers(everything.events) == list(range(COUNT))
    offsets = [int(event.offset or "") for event in everything.events]
    assert (offsets[0], offsets[11]) == (0, 1 << 32)
    assert [offset >> 32 for offset in offsets] == [0] * 11 + [1] * 9
    assert offsets == sorted(set(offsets))
    assert not set(offsets[1:]) & set(range(COUNT)), "offsets are not sequence numbers"


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("kind", ["sequence_number", "offset", "enqueued_time"])
@pytest.mark.parametrize("number", [0, 7, 11])
def test_start_at_an_event(loaded: Emulator, everything: Reader, number: int, kind: str, inclusive: bool) -> None:
    assert _first(loaded, getattr(everything.events[number], kind), inclusive) == number + (not inclusive)


@pytest.mark.parametrize("start", ["@latest", COUNT - 1, datetime.now(timezone.utc) + timedelta(days=1)])
def test_start_at_the_end(loaded: Emulator, start: str | int | datetime) -> None:
    loaded.add_hub("ends", 1)
    loaded.append("ends", 0, [b"x"] * COUNT)
    count = loaded.partition_state("ends", 0).next_sequence_number
    start = count - 1 if isinstance(start, int) else start
    with reader(loaded.connection_string("ends"), start=start) as latest:
        assert latest.read_all() == []
        loaded.append("ends", 0, [b"new"])
        assert numbers(latest.read(1)) == [count]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize(
    ("start", "what"),
    [(COUNT, "sequence number"), (COUNT + 10, "sequence number"), ("one beyond", "offset"), ("x", "offset")],
)
def test_position_beyond_the_last_event_is_refused(
    loaded: Emulator, start: str | int, what: str, inclusive: bool
) -> None:
    if start == "one beyond":
        start = str(int(loaded.partition_state("hub", 0).last_offset) + 1)
    error = refusal(loaded.connection_string("hub"), start=start, inclusive=inclusive)
    assert f"supplied {what} '{start}' is invalid" in str(error)
