"""The receiver of one partition: it knows where it is, and says who took the partition from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Receiver, Unreachable
from spark_ehbalance.hub.rows import sequence_numbers
from tests.source.support import HUB, hub_options, receive
from tests.waiting import wait_until

Open = Callable[..., Receiver]

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def receiver(emulator: Emulator) -> Iterator[Open]:
    """Opens receivers of partition 0, which has ten events."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"%d" % n for n in range(10)])
    source = PartitionAddress(hub_options(emulator).connection, "$Default", "0")
    receivers = []

    def make(start: int = 0, owner_level: int | None = None, prefetch: int = 100) -> Receiver:
        receivers.append(Receiver(source, start, owner_level=owner_level, prefetch=prefetch))
        return receivers[-1]

    yield make
    for each in receivers:
        each.close()


def read(receiver: Receiver, count: int, most: int = 100) -> list[int]:
    return receive(receiver, count, most)["sequenceNumber"].to_pylist()


def taken(receiver: Receiver) -> Disconnected:
    """The disconnection that `receiver` meets."""
    with pytest.raises(Disconnected) as caught:
        wait_until(lambda: receiver.receive(100, 0.1) is None, "it is disconnected", timeout=10)
    assert "\n" not in str(caught.value)
    return caught.value


def test_it_reads_on(emulator: Emulator, receiver: Open) -> None:
    reader = receiver()
    assert reader.next == 0
    assert read(reader, 10) == list(range(10))
    assert reader.next == 10
    emulator.append(HUB, 0, [b"x"] * 5)
    assert read(reader, 5) == list(range(10, 15))
    assert reader.next == 15


@pytest.mark.parametrize("start", [0, 4, 9])
def test_it_starts_at_a_number_inclusive(receiver: Open, start: int) -> None:
    assert read(receiver(start), 10 - start) == list(range(start, 10))


def test_it_starts_at_the_next_event_to_come(emulator: Emulator, receiver: Open) -> None:
    reader = receiver(10)
    assert reader.receive(10, 0.1).num_rows == 0
    assert reader.next == 10
    emulator.append(HUB, 0, [b"x"])
    assert read(reader, 1) == [10]


def test_it_starts_at_a_time(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"x"] * 3)
    moment = emulator.partition_state(HUB, 0).last_enqueued_time
    assert moment is not None
    source = PartitionAddress(hub_options(emulator).connection, "$Default", "0")
    reader = Receiver(source, moment - timedelta(seconds=1), owner_level=None, prefetch=10)
    assert reader.next is None
    assert read(reader, 3) == [0, 1, 2]
    assert reader.next == 3
    reader.close()


def test_what_was_not_asked_for_is_kept_for_the_next_time(receiver: Open) -> None:
    reader = receiver()
    got: list[int] = []
    while len(got) < 10:
        batch = reader.receive(3, 1.0)
        assert 1 <= batch.num_rows <= 3
        got += sequence_numbers(batch).to_pylist()
        assert reader.next == got[-1] + 1
    assert got == list(range(10))


def test_nothing_came_within_the_time(receiver: Open) -> None:
    reader = receiver(10)
    begun = time.monotonic()
    assert reader.receive(5, 0.3).num_rows == 0
    assert 0.3 <= time.monotonic() - begun < 3


def test_a_trickle_comes_at_once(emulator: Emulator, receiver: Open) -> None:
    reader = receiver()
    read(reader, 10)
    for _ in range(5):
        emulator.append(HUB, 0, [b"x"])
        begun = time.monotonic()
        assert reader.receive(100, 5.0).num_rows == 1
        assert time.monotonic() - begun < 1.0


def test_a_trickle_is_not_waited_for_longer_than_asked(emulator: Emulator, receiver: Open) -> None:
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
        assert reader.receive(1000, 0.3).num_rows < 500  # 60 are sent in that time
    finally:
        done.set()
        feeding.join()


@pytest.mark.parametrize(("mine", "other"), [(3, 4), (3, 3), (0, 7), (None, 0), (None, 5)])
def test_stolen_by_a_higher_or_equal_owner_level(receiver: Open, mine: int | None, other: int) -> None:
    first = receiver(owner_level=mine)
    read(first, 10)
    second = receiver(owner_level=other)
    read(second, 10)
    assert taken(first).epoch == other


def test_refused_with_a_lower_owner_level(receiver: Open) -> None:
    first = receiver(owner_level=7)
    read(first, 10)
    assert taken(receiver(owner_level=3)).epoch == 7
    assert first.receive(1, 0.1).num_rows == 0


def test_refused_without_owner_level_while_one_has_it(receiver: Open) -> None:
    read(receiver(owner_level=7), 10)
    assert taken(receiver()).epoch == 7


def test_five_may_read_without_owner_level_and_a_sixth_may_later(emulator: Emulator, receiver: Open) -> None:
    five = [receiver() for _ in range(5)]
    for each in five:
        read(each, 10)
    sixth = receiver()
    with pytest.raises(Unreachable, match="maximum number of allowed receivers"):
        wait_until(lambda: sixth.receive(100, 1.0) is None, "it is refused", timeout=10)
    five[0].close()
    wait_until(lambda: len(emulator.readers(HUB, 0)) == 4, "one is gone")
    assert len(read(receiver(), 10)) == 10


@pytest.mark.parametrize(
    "break_it",
    [
        lambda emulator: emulator.drop_connections(),
        lambda emulator: emulator.detach(HUB, 0),
        lambda emulator: emulator.detach(HUB, 0, "amqp:internal-error", "epoch went wrong"),
        lambda emulator: emulator.detach(HUB, 0, "com.microsoft:server-busy", "busy"),
    ],
    ids=["drop", "detach", "internal error", "busy"],
)
def test_a_broken_connection_is_unreachable(emulator: Emulator, receiver: Open, break_it: Callable[..., None]) -> None:
    reader = receiver()
    read(reader, 10)
    break_it(emulator)
    with pytest.raises(Unreachable) as caught:
        wait_until(lambda: reader.receive(1, 0.1) is None, "it is broken", timeout=10)
    assert "\n" not in str(caught.value)
    assert reader.next == 10


def test_a_hub_with_epoch_in_its_name_is_unreachable_and_not_taken(emulator: Emulator) -> None:
    source = PartitionAddress(
        hub_options(emulator, connectionString=emulator.connection_string("epochs")).connection, "$Default", "0"
    )
    reader = Receiver(source, 0, owner_level=None, prefetch=1)
    with pytest.raises(Unreachable, match="'epochs' could not be found"):
        wait_until(lambda: reader.receive(1, 0.5) is None, "it is refused", timeout=10)


def test_refused_connections_are_unreachable(emulator: Emulator, receiver: Open) -> None:
    emulator.refuse_connections()
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="no connection could be made to localhost"):
        receiver().receive(1, 5.0)
    assert time.monotonic() - begun < 2


def test_a_wrong_key_is_said_to_be_refused_and_not_shown() -> None:
    with Emulator({HUB: 1}, sas_keys={"reader": "theRightKey"}) as emulator:
        wrong = emulator.connection_string(HUB, key="theWrongKey")
        source = PartitionAddress(hub_options(emulator, connectionString=wrong).connection, "$Default", "0")
        with pytest.raises(HubUnavailableError, match=r"partition 0: .* refused the credentials") as caught:
            Receiver(source, 0, owner_level=None, prefetch=1).receive(1, 5.0)
    assert "theWrongKey" not in str(caught.value)


def test_a_closed_receiver_leaves_and_may_be_closed_again(emulator: Emulator, receiver: Open) -> None:
    reader = receiver(owner_level=3)
    read(reader, 10)
    assert emulator.readers(HUB, 0) == [3]
    begun = time.monotonic()
    reader.close()
    assert time.monotonic() - begun < 0.5
    reader.close()
    wait_until(lambda: not emulator.readers(HUB, 0), "it has gone")


def test_large_events_come_whole(emulator: Emulator, receiver: Open) -> None:
    large = bytes(range(256)) * 4000
    emulator.append(HUB, 0, [large] * 3)
    reader = receiver(10)
    assert receive(reader, 3)["body"].to_pylist() == [large] * 3
