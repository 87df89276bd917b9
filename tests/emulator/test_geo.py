"""A geo-replicated hub: offsets that are no numbers, and promotions that lose events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.eventhub.exceptions import EventHubError

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
    return {each.sequence_number: each.offset for each in events}


def bodies(emulator: Emulator, count: int, start: str) -> list[str]:
    return [each.body_as_str() for each in clients.read(emulator.connection_string(HUB), count, start=start)]


def refused(emulator: Emulator, start: str) -> str:
    """What the client says of a receiver that starts there."""
    with pytest.raises(EventHubError) as refusal:
        clients.read(emulator.connection_string(HUB), 1, start=start)
    return str(refusal.value)


def test_offsets_are_texts_at_which_a_receiver_can_start(geo: Emulator) -> None:
    offsets = read(geo, 10)
    assert all(offset.count(":") == 2 for offset in offsets.values())
    assert len(set(offsets.values())) == 10
    assert list(read(geo, 5, offsets[4])) == [5, 6, 7, 8, 9]
    assert list(read(geo, 6, offsets[4], inclusive=True)) == [4, 5, 6, 7, 8, 9]


def test_the_newest_offset_is_told_and_can_be_started_at(geo: Emulator) -> None:
    assert geo.partition_state(HUB, 0).last_offset == read(geo, 10)[9]
    geo.add_partitions(HUB, 1)
    last, empty = geo.partition_state(HUB, 0).last_offset, geo.partition_state(HUB, 1).last_offset
    geo.append(HUB, 0, [b"10"])
    assert list(read(geo, 1, last)) == [10]
    assert empty.endswith(":-1:-1"), "as the real service has it"
    assert list(read(geo, 11, empty)) == list(range(11))


@pytest.mark.parametrize("offset", ["0", "4096", "1:2", "x", "1:4097:0", "2:4096:0", "0:4096:0", "1:999999:99"])
def test_any_other_offset_is_refused(geo: Emulator, offset: str) -> None:
    assert f"supplied offset '{offset}' is invalid" in refused(geo, offset)


def test_a_promotion_without_loss_only_resets_connections(geo: Emulator) -> None:
    before = read(geo, 10)
    with reader(geo.connection_string(HUB), start="@latest"):
        geo.promote(HUB)
        wait_until(lambda: geo.connections() == 0, "the connection is reset")
    geo.append(HUB, 0, [b"10"])
    after = read(geo, 11)
    assert {number: after[number] for number in range(10)} == before
    assert after[10].split(":")[0] > before[9].split(":")[0]


@pytest.mark.parametrize(
    ("behaviour", "first"), [("resume", "new 7"), ("refuse", None), ("number", "new 10")], ids=lambda value: str(value)
)
def test_a_start_at_a_lost_events_offset(geo: Emulator, behaviour: str, first: str | None) -> None:
    before = read(geo, 10)
    geo.promote(HUB, 3, lost_offsets=behaviour)
    geo.append(HUB, 0, [b"new %d" % number for number in range(7, 12)])
    if first is None:
        assert "is invalid" in refused(geo, before[9])
    else:
        assert bodies(geo, 1, before[9])[0] == first
    after = read(geo, 12)
    assert [after[number] == before[number] for number in range(10)] == [True] * 7 + [False] * 3
    assert bodies(geo, 1, before[5])[0] == "6", "one that was not lost"


@pytest.mark.parametrize("lost", [-1, 11])
def test_no_more_events_can_be_lost_than_there_are(geo: Emulator, lost: int) -> None:
    with pytest.raises(ValueError, match="allowed are 0 to 10"):
        geo.promote(HUB, lost)
    with pytest.raises(ValueError, match="only a geo-replicated hub"), Emulator({HUB: 1}) as other:
        other.promote(HUB)
