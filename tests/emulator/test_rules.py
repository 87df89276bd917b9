"""The rules of Event Hubs in `docs/service-rules.md`, as real clients meet them: the emulator keeps each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, ConnectError

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER, Attach, Close, Flow, Open, Transfer
from tests.emulator.clients import detached, numbers, producer, reader, refusal, wait_until
from tests.emulator.raw import PARTITION, RawPeer

# --- limits


def test_the_sixth_receiver_without_owner_level_is_refused(emulator: Emulator, connection: str) -> None:
    with contextlib.ExitStack() as stack:
        five = [stack.enter_context(reader(connection)) for _ in range(5)]
        error = refusal(connection)
        assert error.error == "resource-limit-exceeded"
        assert "receivers per partition in a consumer group which is 5. List of connected receivers - nil, " in str(
            error
        )
        with reader(connection, "1"):
            pass
        emulator.append("hub", 0, [b"x"])
        assert all(numbers(each.read(1)) == [0] for each in five)
    with reader(connection):
        pass


def test_a_connection_beyond_the_namespace_s_limit_is_refused() -> None:
    with Emulator({"hub": 1}, max_connections=2) as emulator, RawPeer.opened(emulator):
        with RawPeer.opened(emulator), RawPeer(emulator) as third:
            third.socket.sendall(AMQP_HEADER)
            third.take(8)
            third.send(Open("third"))
            error = third.expect(Close).error.value
            assert error[0] == "amqp:resource-limit-exceeded"
            assert "ConnectionsQuotaExceeded" in error[1]
        wait_until(lambda: emulator.connections() == 1, "the others have gone")
        with RawPeer.opened(emulator):
            pass


def test_more_requests_than_a_hub_answers_in_a_second_are_refused() -> None:
    """One by one: the limit is low, so that no machine is too slow to reach it."""
    with (
        Emulator({"hub": 1, "other": 1}, management_requests=2) as emulator,
        producer(emulator.connection_string("hub"), retry_total=0) as client,
        producer(emulator.connection_string("other"), retry_total=0) as other,
    ):
        refused: list[str] = []

        def ask() -> bool:
            try:
                client.get_eventhub_properties()
            except ConnectError as error:
                refused.append(str(error))
                return False
            return True

        wait_until(lambda: not ask(), "a request is refused")
        assert "503" in refused[0]
        assert "being throttled" in refused[0]
        assert other.get_eventhub_properties()["eventhub_name"] == "other"
        wait_until(ask, "it answers again")


def test_what_is_announced_is_what_the_service_announces(emulator: Emulator, connection: str) -> None:
    """In the frames that docs/service-rules.md names."""
    with RawPeer(emulator) as peer:
        opened, begun = peer.open()
        assert (opened.max_frame_size, opened.channel_max, opened.idle_time_out) == (65_536, 4_999, 120_000)
        assert (begun.incoming_window, begun.handle_max) == (5_000, 255)
        for handle, (address, credit) in enumerate(
            {"hub": 300, "hub/Partitions/0": 1000, "$cbs": 100, "$management": 100}.items()
        ):
            peer.attach_sender(address, handle=handle)
            assert peer.expect(Flow).link_credit == credit


# --- deliveries


@pytest.fixture(params=[True, False], ids=["settled", "unsettled"])
def delivering(request: pytest.FixtureRequest) -> Iterator[tuple[Emulator, bool]]:
    with Emulator({"hub": 1}, settled=request.param) as running:
        yield running, request.param


def test_deliveries_are_settled_or_have_tags_of_their_own(delivering: tuple[Emulator, bool]) -> None:
    emulator, settled = delivering
    emulator.append("hub", 0, [b"x", b"y" * 200_000, b"z"])
    with RawPeer.opened(emulator) as peer:
        peer.attach_receiver(f"{PARTITION}0")
        assert peer.expect(Attach).snd_settle_mode == (1 if settled else 0)
        peer.credit(10)
        tags: list[bytes] = []
        while len(tags) < 3:
            transfer, _ = peer.expect(Transfer)
            assert bool(transfer.settled) is settled
            tags += [transfer.delivery_tag] if transfer.delivery_tag else []
        assert len(set(tags)) == (1 if settled else 3)


# --- what there is not


def test_a_hub_that_does_not_exist_is_refused(emulator: Emulator) -> None:
    """At the token for it, so that the client takes it for one of authentication."""
    with RawPeer.opened(emulator) as peer:
        answer = peer.request("$cbs", operation="put-token", type="jwt", name="sb://localhost/nohub").application
    assert (answer["status-code"], answer["error-condition"]) == (404, "amqp:not-found")
    assert "The messaging entity 'sb://emulator/nohub' could not be found." in answer["status-description"]
    assert isinstance(refusal(emulator.connection_string("nohub")), AuthenticationError)
    with producer(emulator.connection_string("nohub"), retry_total=0) as client, pytest.raises(AuthenticationError):
        client.send_event(EventData(b"x"))


@pytest.mark.parametrize(
    "audience", ["sb://localhost", "sb://localhost/$management", "sb://localhost/HUB/Partitions/0"]
)
def test_a_token_is_taken_for_the_namespace_or_below_a_hub(emulator: Emulator, connection: str, audience: str) -> None:
    with RawPeer.opened(emulator) as peer:
        answer = peer.request("$cbs", operation="put-token", type="jwt", name=audience)
    assert answer.application["status-code"] == 202


def test_a_consumer_group_that_does_not_exist_is_refused(emulator: Emulator, connection: str) -> None:
    error = refusal(connection, group="later")
    assert error.error == "not-found"
    assert "|later' could not be found" in str(error)
    emulator.add_consumer_group("hub", "later")
    with reader(connection, group="LATER"):
        pass


@pytest.mark.parametrize("partition", ["9", "²"])
def test_a_partition_that_does_not_exist_is_refused(connection: str, partition: str) -> None:
    error = refusal(connection, partition=partition)
    assert error.error == "argument-out-of-range"
    assert "It should be between 0 and 3" in str(error)
    with producer(connection, retry_total=0) as client, pytest.raises(ConnectError, match="400"):
        client.get_partition_properties(partition)


def test_a_disabled_hub_is_refused(emulator: Emulator, connection: str) -> None:
    with reader(connection) as events, producer(connection, retry_total=0) as client:
        emulator.disable_hub("hub")
        assert detached(events).error == "entity-disabled"
        with pytest.raises(ConnectError, match="currently disabled"):
            client.get_eventhub_properties()
    assert refusal(connection).error == "entity-disabled"
    emulator.disable_hub("hub", False)
    with reader(connection):
        pass
