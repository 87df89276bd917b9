"""The watcher tells the offsets of events whose sequence numbers are known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.hub.watcher import HubWatcher
from spark_ehbalance.values.starting_positions import EARLIEST
from tests.source.support import HUB, hub_options, receive
from tests.waiting import wait_until

#: The owner level of all readers of the group.
LEVEL = 0


@pytest.fixture
def watcher(emulator: Emulator) -> Iterator[HubWatcher]:
    """Of a hub with two partitions, which have ten events each; it knows the last ones only."""
    emulator.add_hub(HUB, 2)
    for partition in range(2):
        emulator.append(HUB, partition, [b"x"] * 10)
    how: dict[str, Any] = {"patience": 2.0, "remembered_offsets": 100}
    made = HubWatcher(hub_options(emulator).connection, "$Default", EARLIEST, 20.0, threading.Event(), **how)
    made.start()
    yield made
    made.stop()


def told(emulator: Emulator, partition: str) -> dict[int, str]:
    """The offsets by sequence number, as events have them."""
    address = PartitionAddress(hub_options(emulator).connection, "$Default", partition)
    receiver = Receiver(address, 0, owner_level=LEVEL, prefetch=10)
    rows: Any = receive(receiver, 10)
    receiver.close()
    return dict(zip(rows.column("sequenceNumber").to_pylist(), rows.column("offset").to_pylist(), strict=True))


def test_of_events_that_have_been_the_last_one_without_a_receiver(emulator: Emulator, watcher: HubWatcher) -> None:
    known = watcher.offsets({"0": 9}, LEVEL)
    emulator.append(HUB, 0, [b"x"] * 5)
    watcher.watch(["0"])
    wait_until(lambda: watcher.states()["0"].end == 15, "the new events are seen")
    emulator.pause(HUB, 0)  # nothing is received
    assert watcher.offsets({"0": 9}, LEVEL) == known
    assert watcher.offsets({"0": 14}, LEVEL)
    assert watcher.offsets({"0": 12}, LEVEL) == {}, "not in time"


def test_before_the_first_retained_event_it_is_the_start(emulator: Emulator, watcher: HubWatcher) -> None:
    emulator.trim(HUB, 0, 6)
    watcher.refresh()
    assert watcher.offsets({"0": 4}, LEVEL) == {"0": "-1"}


def test_an_event_that_there_is_not_delays_no_other(emulator: Emulator, watcher: HubWatcher) -> None:
    assert watcher.offsets({"0": 100, "1": 5}, LEVEL) == {"1": told(emulator, "1")[5]}


def test_of_a_hub_made_anew_nothing_earlier_is_remembered(emulator: Emulator, watcher: HubWatcher) -> None:
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 2)
    emulator.append(HUB, 0, [b"x"] * 5)
    watcher.refresh()
    emulator.append(HUB, 0, [b"longer" * 100] * 10)
    assert watcher.offsets({"0": 9}, LEVEL) == {"0": told(emulator, "0")[9]}
