"""`earliest`, `latest`, sequence numbers and times, resolved in a partition's current state."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.resolve import find_offset, position_after_offset, resolve
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import AfterOffset, PartitionEnd, UnresolvedPosition
from tests.eventhub.receiving import address_of, reading
from tests.query.support import HUB, receive
from tests.raising import raises
from tests.waiting import wait_until


class Hub:
    """A hub with the single partition 0."""

    def __init__(self, emulator: Emulator) -> None:
        emulator.add_hub(HUB, 1)
        self.emulator = emulator
        self.address = address_of(emulator)

    def state(self) -> PartitionState:
        with HubMetadata(self.address.connection, "$Default") as metadata:
            return metadata.partition_states(["0"])["0"]

    def append(self, count: int) -> datetime:
        """Add events; returns the time of the last one, which differs from the times of other calls' events."""
        last = self.emulator.partition_state(HUB, 0).last_enqueued_ms or 0
        wait_until(lambda: time.time_ns() // 1_000_000 > last, "the clock has advanced")
        self.emulator.append(HUB, 0, [b"x"] * count)
        time_of_last = self.emulator.partition_state(HUB, 0).last_enqueued_time
        assert time_of_last is not None
        return time_of_last

    def resolve(self, position: UnresolvedPosition) -> Position:
        return resolve(position, self.address, self.state(), timeout=20)


@pytest.fixture
def hub(emulator: Emulator) -> Hub:
    return Hub(emulator)


AGES = [timedelta(days=-4000), timedelta(seconds=-1), timedelta(), timedelta(days=4000)]


def test_positions_in_an_empty_partition(hub: Hub) -> None:
    assert hub.resolve(PartitionEnd.EARLIEST).next == 0
    assert hub.resolve(PartitionEnd.LATEST) == Position(-1)
    assert hub.resolve(7) == Position(6)
    for age in AGES:
        assert hub.resolve(datetime.now(timezone.utc) + age).next == 0


def test_edges_and_sequence_numbers(hub: Hub) -> None:
    hub.append(10)
    hub.emulator.trim(HUB, 0, 4)
    assert hub.resolve(PartitionEnd.EARLIEST) == Position(3)
    assert hub.resolve(PartitionEnd.LATEST) == Position(9, hub.emulator.partition_state(HUB, 0).last_offset)
    assert hub.resolve(6) == Position(5)
    assert hub.resolve(0).next == 0


def test_times_are_resolved_to_the_next_event(hub: Hub) -> None:
    first = hub.append(3)
    second = hub.append(1)
    hub.append(1)
    third = hub.append(2)
    assert hub.resolve(first - timedelta(days=1)).next == 0
    assert hub.resolve(second).next == 3
    assert hub.resolve(second + timedelta(milliseconds=1)).next == 4
    assert hub.resolve(second.astimezone(timezone(timedelta(hours=9)))).next == 3
    assert hub.resolve(third + timedelta(milliseconds=1)).next == 7
    hub.emulator.trim(HUB, 0, 2)
    assert hub.resolve(first - timedelta(days=1)).next == 2
    hub.emulator.trim(HUB, 0, 7)
    assert hub.resolve(second).next == 7, "all of them have aged out"


def test_time_is_resolved_despite_a_broken_connection(hub: Hub) -> None:
    moment = hub.append(3) - timedelta(seconds=1)
    hub.emulator.server_busy(count=2)
    state = PartitionState(0, 3, None, moment + timedelta(seconds=1))
    assert resolve(moment, hub.address, state, timeout=20).next == 0


def test_unresolvable_time_is_an_error_after_the_timeout(hub: Hub) -> None:
    moment = hub.append(3)
    state = hub.state()
    hub.emulator.server_busy(seconds=60)
    what = re.compile(f"^Partition 0: .*{re.escape(moment.isoformat())}.* within 0.5 s$")
    with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what=what, reason=re.compile("throttled")) as caught:
        resolve(moment, hub.address, state, timeout=0.5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["time", "offset", "position"])
def test_resolving_never_exceeds_the_highest_owner_level(hub: Hub, kind: str) -> None:
    moment, offset = hub.append(1), hub.state().last_offset
    hub.append(2)
    position = {"time": moment, "offset": AfterOffset(str(offset)), "position": Position(0, offset)}[kind]
    with reading(hub.address, owner_level=7, prefetch=1) as other:
        receive(other, 3)
        for level in (None, 6):
            with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", reason=re.compile("epoch of '7'")):
                resolve(position, hub.address, hub.state(), timeout=1, highest_level=level)
        hub.append(1)
        assert receive(other, 1).num_rows == 1
        found = resolve(position, hub.address, hub.state(), timeout=20, highest_level=7)
    assert found.next == (0 if kind == "time" else 1)


def test_offset_is_resolved_to_the_position_after_its_event(hub: Hub) -> None:
    hub.append(10)
    state = hub.state()
    offsets = {number: find_offset(hub.address, number, 0, timeout=20) for number in (0, 4, 9)}
    assert offsets[9] == state.last_offset
    for number, offset in offsets.items():
        assert offset is not None
        assert position_after_offset(offset, hub.address, state, timeout=20) == Position(number, offset)
    assert position_after_offset("-1", hub.address, state, timeout=20).next == 0

    hub.emulator.trim(HUB, 0, 6)
    assert position_after_offset("-1", hub.address, hub.state(), timeout=20).next == 6
    assert position_after_offset(str(offsets[4]), hub.address, hub.state(), timeout=20).next == 5, "it is not retained"
    hub.emulator.trim(HUB, 0, 10)
    assert position_after_offset(str(offsets[4]), hub.address, hub.state(), timeout=20).next == 9, "it is not retained"


def test_offset_of_another_event_is_rejected(hub: Hub) -> None:
    """This source would continue from the sequence number, but other readers from the offset."""
    hub.append(10)
    offset = find_offset(hub.address, 6, 0, timeout=20)
    for taken in (Position(6, offset), Position(3), Position(3, "-1")):
        assert hub.resolve(taken) == taken
    for wrong in (Position(3, offset), Position(9, offset)):
        with raises(OptionError, "EHB_POSITION_INVALID", problem=re.compile(f"the event before next={wrong.next}$")):
            hub.resolve(wrong)


@pytest.mark.parametrize(("first", "before"), [(9, 8), (2, 1), (0, None)])
def test_offset_of_a_compacted_event_is_the_previous_one(hub: Hub, first: int, before: int | None) -> None:
    hub.append(40)
    expected = "-1" if before is None else find_offset(hub.address, before, 0, timeout=20)
    hub.emulator.compact(HUB, "0", first, 30)
    assert find_offset(hub.address, 20, 0, timeout=20) == expected
    assert find_offset(hub.address, 30, 0, timeout=20) not in (None, expected)


@pytest.mark.parametrize("by", [1, 10**9])
def test_offset_beyond_the_last_event_is_an_error(hub: Hub, by: int) -> None:
    hub.append(3)
    beyond = str(int(hub.state().last_offset or 0) + by)
    what = re.compile(f"at or after offset {beyond} was not found")
    with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what=what):
        position_after_offset(beyond, hub.address, hub.state(), timeout=1)
