"""Receiving with the real client: groups, epochs, many readers, tracking; and credit on a plain socket."""

from __future__ import annotations

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import Flow, Transfer
from tests.emulator.clients import bodies, detached, numbers, reader, refusal, wait_until
from tests.emulator.raw import RawPeer


def test_large_and_small_events_mixed(emulator: Emulator, connection: str) -> None:
    sizes = [10, 1_048_000, 10, 1_048_300, 100_000, 10]
    emulator.append("hub", 0, [b"x" * size for size in sizes])
    with reader(connection) as events:
        assert [len(body) for body in bodies(events.read(len(sizes)))] == sizes
        assert numbers(events.events) == list(range(len(sizes)))


def test_consumer_groups_read_independently(emulator: Emulator, connection: str) -> None:
    emulator.add_consumer_group("hub", "second")
    emulator.append("hub", 0, [b"x"] * 10)
    in_any_case = (reader(connection, group=group, owner_level=1) for group in ("$default", "SECOND"))
    first, second = in_any_case
    with first as one, second as two:
        assert numbers(one.read(10)) == numbers(two.read(10)) == list(range(10))


@pytest.mark.parametrize("epoch", [5, 6])
def test_a_higher_or_equal_epoch_takes_over(emulator: Emulator, connection: str, epoch: int) -> None:
    emulator.append("hub", 0, [b"x"] * 3)
    with reader(connection, owner_level=5) as loser:
        loser.read(3)
        with reader(connection, owner_level=epoch) as winner:
            assert emulator.readers("hub", 0) == [epoch]
            error = detached(loser)
            assert error.error == "link:stolen"
            assert f"higher epoch of '{epoch}'" in str(error)
            assert numbers(winner.read(3)) == [0, 1, 2]


@pytest.mark.parametrize("epoch", [4, None])
def test_a_lower_or_no_epoch_is_refused(emulator: Emulator, connection: str, epoch: int | None) -> None:
    emulator.append("hub", 0, [b"x"])
    with reader(connection, owner_level=5) as owner:
        error = refusal(connection, owner_level=epoch)
        assert error.error == "link:stolen"
        expected = {
            4: "Receiver 'nil' with a higher epoch '5' already exists. Receiver 'nil' with epoch 4 cannot be created.",
            None: "At least one receiver for the endpoint is created with epoch of '5'",
        }
        assert str(error).startswith(expected[epoch])
        assert numbers(owner.read(1)) == [0]
        assert emulator.readers("hub", 0) == [5]


def test_an_epoch_disconnects_all_without_one(emulator: Emulator, connection: str) -> None:
    with reader(connection) as one, reader(connection) as two, reader(connection, owner_level=0):
        for each in (one, two):
            assert "higher epoch of '0'" in str(detached(each))


def test_epochs_are_per_partition_and_end_with_the_reader(emulator: Emulator, connection: str) -> None:
    with reader(connection, owner_level=5), reader(connection, "1"):
        pass
    wait_until(lambda: emulator.readers("hub", 0) == [], "the owner is detached")
    with reader(connection, owner_level=1):
        pass


def test_no_more_than_the_credit_is_sent_and_a_drain_returns_the_rest(emulator: Emulator, connection: str) -> None:
    emulator.append("hub", 0, [b"x"] * 13)
    with RawPeer.reading(emulator, 7) as peer:
        received = [peer.expect(Transfer)[0].delivery_id for _ in range(7)]
        peer.credit(3, received=7)
        received += [peer.expect(Transfer)[0].delivery_id for _ in range(3)]
        assert received == list(range(10))
        peer.credit(0, received=10, echo=True)
        assert peer.expect(Flow).link_credit == 0
        peer.credit(10, received=10, drain=True)
        for _ in range(3):
            peer.expect(Transfer)
        flow = peer.expect(Flow)
        assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 20)
