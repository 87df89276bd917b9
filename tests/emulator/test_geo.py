"""A geo-replicated hub: offsets that are not numbers, and promotions that lose events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ehbalance.emulator import Emulator
from tests.emulator import clients
from tests.emulator.clients import reader, wait_until

HUB = "hub"


@pytest.fixture
def geo() -> Iterator[Emulator]:
    """A partition with ten events whose bodies are their numbers."""
    with Emulator({HUB: 1}, geo_replicated=True) as running:
        running.append(HUB, 0, [b"%d" % number for number in range(10)])
        yield running


def read(emulator: Emulator, count: int, start: str | int = "-1", *, inclusive: bool = False) -> dict[int, str]:
    """The offsets of the first events after `start`, by sequence number."""
    events = clients.read(emulator.connection_string(HUB), count, start=start, inclusive=inclusive)
    return {event.sequence_number: event.offset for event in events}


def test_receiver_starts_at_geo_replicated_offsets_only(geo: Emulator) -> None:
    offsets = read(geo, 10)
    assert all(offset.count(":") == 2 for offset in offsets.values())
    assert geo.partition_state(HUB, 0).last_offset == offsets[9]
    assert list(read(geo, 5, offsets[4])) == [5, 6, 7, 8, 9]
    assert list(read(geo, 6, offsets[4], inclusive=True)) == [4, 5, 6, 7, 8, 9]
    for offset in ("4096", "x"):
        error = clients.refusal(geo.connection_string(HUB), start=offset)
        assert f"supplied offset '{offset}' is invalid" in str(error)


@pytest.mark.parametrize("refuse_lost", [False, True])
def test_start_at_the_offset_of_a_lost_event(geo: Emulator, refuse_lost: bool) -> None:
    before = read(geo, 10)
    with reader(geo.connection_string(HUB), start="@latest"):
        geo.promote(HUB, 3, refuse_lost=refuse_lost)
        wait_until(lambda: geo.connections() == 0, "the connection is reset")
    geo.append(HUB, 0, [b"new"] * 5)
    if refuse_lost:
        assert "is invalid" in str(clients.refusal(geo.connection_string(HUB), start=before[9]))
    else:
        assert list(read(geo, 2, before[9])) == [10, 11]
    after = read(geo, 12)
    assert [after[number] == before[number] for number in range(10)] == [True] * 7 + [False] * 3
    assert min(read(geo, 1, before[5])) == 6, "one that was not lost"


def test_promotion_increments_the_epoch_of_new_events(geo: Emulator) -> None:
    geo.promote(HUB, 3)
    geo.append(HUB, 0, [b"new"] * 2)
    events = clients.read(geo.connection_string(HUB), 9)
    epochs = [event.raw_amqp_message.annotations[b"x-opt-sequence-number-epoch"] for event in events]
    assert epochs == [1] * 7 + [2] * 2
