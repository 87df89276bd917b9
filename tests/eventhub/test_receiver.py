"""The receiver for one partition: its position, and its endings."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import MissingError
from spark_ehbalance.eventhub.receiver import DisconnectedError, Receiver, disconnect_readers
from spark_ehbalance.group.position import START_OFFSET
from tests.eventhub.receiving import address_of, reading, receive_until_error
from tests.query.support import HUB, hub_options, receive
from tests.raising import raises
from tests.waiting import wait_until

Open = Callable[..., Receiver]


@pytest.fixture
def receiver(emulator: Emulator) -> Iterator[Open]:
    """Opens receivers for partition 0, which has ten events."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"%d" % n for n in range(10)])
    address = address_of(emulator)
    receivers = []

    def make(start: int | str = 0, owner_level: int | None = None, prefetch: int = 100) -> Receiver:
        receivers.append(Receiver(address, start, owner_level=owner_level, prefetch=prefetch))
        return receivers[-1]

    yield make
    for receiver in receivers:
        receiver.close()


def read(receiver: Receiver, count: int, most: int = 100) -> list[int]:
    return receive(receiver, count, most)["sequenceNumber"].to_pylist()


def test_receive_returns_an_empty_batch_after_the_wait(receiver: Open) -> None:
    reader = receiver("@latest")
    begun = time.monotonic()
    assert reader.receive(5, 0.3).num_rows == 0
    assert 0.3 <= time.monotonic() - begun < 3


def test_readers_of_an_empty_hub_are_disconnected(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    address = address_of(emulator)
    with contextlib.closing(Receiver(address, START_OFFSET, owner_level=1, prefetch=1)) as former:
        former.confirm(10)
        disconnect_readers({address: 1})
        with pytest.raises(DisconnectedError) as caught:
            receive_until_error(former, 0.1)
    assert caught.value.epoch == 1


def test_frequent_single_events_do_not_prolong_the_wait(emulator: Emulator, receiver: Open) -> None:
    reader = receiver(prefetch=1000)
    read(reader, 10)
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.005):
            emulator.append(HUB, 0, [b"x"])

    feeding = threading.Thread(target=trickle)
    feeding.start()
    try:
        assert reader.receive(3, 5.0).num_rows <= 3
        assert reader.receive(1000, 0.3).num_rows < 500  # 60 events are sent in that time
    finally:
        done.set()
        feeding.join()


def test_epoch_in_a_hubs_name_does_not_mean_disconnected(emulator: Emulator) -> None:
    connection = hub_options(emulator, connectionString=emulator.connection_string("epochs")).connection
    with (
        reading(address_of(emulator, connection)) as reader,
        raises(MissingError, "EHB_HUB_NOT_FOUND", what=re.compile("'epochs' at localhost")),
    ):
        receive_until_error(reader, 0.5)


def test_closed_receiver_leaves_the_hub_and_can_be_closed_again(emulator: Emulator, receiver: Open) -> None:
    reader = receiver(owner_level=3)
    read(reader, 10)
    assert emulator.readers(HUB, 0) == [3]
    begun = time.monotonic()
    reader.close()
    assert time.monotonic() - begun < 0.5
    reader.close()
    assert reader.receive(10, 0.1).num_rows == 0
    wait_until(lambda: not emulator.readers(HUB, 0), "it has gone")
