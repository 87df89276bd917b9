"""The rules of Event Hubs in `service_rules.md`, which the emulator follows, mostly with real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.codec import Described, Int, Symbol, ULong, encode
from spark_ehbalance.emulator.amqp.frames import (
    ACCEPTED,
    AMQP_HEADER,
    SASL_HEADER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    encode_frame,
)
from spark_ehbalance.emulator.amqp.session import MAX_MESSAGE_SIZE
from spark_ehbalance.emulator.message import parse_sections
from tests.emulator.clients import bodies, detached, producer, reader, refusal, wait_until
from tests.emulator.raw import PARTITION, RawPeer, condition, request_message, source, target

MIB, NO_LIMIT = 1 << 20, 2**64 - 1


def test_every_rule_names_a_test() -> None:
    here = Path(__file__).parent
    tests = "".join(path.read_text() for path in here.parent.glob("**/test_*.py"))
    _, *rows = (line for line in (here / "service_rules.md").read_text().splitlines() if line.startswith("| "))
    assert [row for row in rows if f"def {row.rsplit('`', 2)[1]}(" not in tests] == []


# --- limits


def test_connection_beyond_the_namespace_limit_is_refused() -> None:
    with Emulator({"hub": 1}, max_connections=2) as emulator, RawPeer.opened(emulator):
        with RawPeer.opened(emulator), RawPeer(emulator) as third:
            third.socket.sendall(AMQP_HEADER)
            third.take(8)
            third.send(Open("third"))
            error = third.expect(Close).error.value
            assert error[0] == "amqp:resource-limit-exceeded"
            assert "ConnectionsQuotaExceeded" in error[1]
        wait_until(lambda: emulator.connections() == 1, "the others are closed")
        with RawPeer.opened(emulator):
            pass


def test_requests_above_the_rate_limit_are_refused() -> None:
    """The test sets a low limit, which even slow machines reach."""
    with (
        Emulator({"hub": 1, "other": 1}, management_requests=2) as emulator,
        producer(emulator.connection_string("hub"), retry_total=0) as client,
        producer(emulator.connection_string("other"), retry_total=0) as other,
    ):
        refused: list[str] = []

        def request() -> bool:
            try:
                client.get_eventhub_properties()
            except ConnectError as error:
                refused.append(str(error))
                return False
            return True

        wait_until(lambda: not request(), "a request is refused")
        assert "503" in refused[0]
        assert "being throttled" in refused[0]
        assert other.get_eventhub_properties()["eventhub_name"] == "other"
        wait_until(request, "it responds again")


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "ANONYMOUS", "EXTERNAL"])
def test_sasl_accepts_every_peer_before_its_token(emulator: Emulator, mechanism: str) -> None:
    with RawPeer(emulator) as peer:
        peer.socket.sendall(SASL_HEADER + encode_frame(0, SaslInit(mechanism)))
        assert peer.take(8) == SASL_HEADER
        assert peer.expect(SaslMechanisms).mechanisms == ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
        assert peer.expect(SaslOutcome) == SaslOutcome(0, b"Welcome!")
        peer.open()


def test_announced_limits_equal_the_services(emulator: Emulator, connection: str) -> None:
    """As in the frames named in service_rules.md."""
    with RawPeer(emulator) as peer:
        opened, begun = peer.open(channel=7)
        assert (opened.max_frame_size, opened.channel_max, opened.idle_time_out) == (65_536, 4_999, 120_000)
        assert begun == Begin(7, 1, 5_000, 65_536, 255)
        credits = {"hub": 300, "hub/Partitions/0": 1000, "$cbs": 100, "$management": 100}
        for handle, (address, credit) in enumerate(credits.items()):
            peer.attach_sender(address, handle=9 - handle)
            attached = peer.expect(Attach)
            assert (attached.handle, attached.max_message_size) == (handle, NO_LIMIT if "$" in address else MIB)
            assert peer.expect(Flow) == Flow(0, 5_000, 1, 65_536, handle, 0, credit, 0, False, False)


def test_attach_response_repeats_the_requested_fields(emulator: Emulator, connection: str) -> None:
    """As in the frames named in service_rules.md: with a number in place of the filter's name."""
    name, selector = Symbol("apache.org:selector-filter:string"), "amqp.annotation.x-opt-offset > '-1'"
    properties = {Symbol("com.microsoft:epoch"): 1}
    to = target("a client's own name")
    with RawPeer.opened(emulator) as peer:
        for requested, answered in ((name, Described(ULong(0x137000000A), selector)), (None, None)):
            filters = [{requested: Described(requested, selector)} if requested else None]
            from_partition = Described(ULong(0x28), [f"{PARTITION}0", *[None] * 6, *filters, None, None, None])
            peer.send(Attach("r", 5, True, 0, 1, source=from_partition, target=to, properties=properties))
            attach = peer.expect(Attach)
            assert (attach.handle, attach.snd_settle_mode, attach.rcv_settle_mode, attach.target) == (0, 1, 1, to)
            assert attach.source.value == [*from_partition.value[:7], answered and {name: answered}, None, None, None]
            assert (attach.max_message_size, attach.properties, attach.offered_capabilities) == (MIB, properties, None)
            peer.send(Detach(5, True))
            assert peer.expect(Detach) == Detach(0, True)
        peer.send(Attach("s", 5, False, 0, 1, source=source("a client's own name"), target=target("hub")))
        attach = peer.expect(Attach)
        assert (attach.snd_settle_mode, attach.rcv_settle_mode) == (0, 0)
        assert list(attach.properties) == ["com.microsoft:tracking-id"]


def test_refused_link_keeps_its_handle_until_the_client_detaches(emulator: Emulator) -> None:
    with RawPeer.opened(emulator) as peer:
        peer.attach_sender("nohub", handle=3)
        assert (peer.expect(Attach).handle, peer.expect(Detach).handle) == (0, 0)
        peer.attach_sender("$cbs", handle=4)
        assert peer.expect(Attach).handle == 1
        peer.send(Detach(3, True))
        peer.attach_sender("$cbs", handle=5)
        assert peer.expect(Attach).handle == 0


# --- answers to requests


@pytest.mark.parametrize("settles", [True, False], ids=["client", "service"])
@pytest.mark.parametrize(
    ("node", "properties", "code", "more"),
    [
        ("$cbs", {"operation": "put-token", "name": "sb://localhost/hub"}, 202, {"status-description": "Accepted"}),
        (
            "$management",
            {"operation": "READ", "name": "hub", "type": "com.microsoft:eventhub"},
            200,
            {"operation": "READ"},
        ),
    ],
)
def test_response_is_settled_by_the_client_or_after_a_timeout(
    node: str, properties: dict[str, str], code: int, more: dict[str, str], settles: bool
) -> None:
    with Emulator({"hub": 2}, idle_timeout=1.0) as emulator, RawPeer.opened(emulator) as peer:
        transfer, payload = peer.request_frame(node, **properties)
        assert transfer[1:5] == (0, b"\x01\x00\x00\x00", 0, False)
        answer = parse_sections(payload)
        assert answer.properties == [None] * 5 + ["request"] + [None] * 7
        assert answer.application == {"status-code": code, **more}
        assert type(answer.application["status-code"]) is Int
        assert (answer.value is None) == (node == "$cbs")
        if settles:
            peer.send(Disposition(True, 0, None, True, ACCEPTED))
            assert peer.expect(Disposition, Flow).echo, "it is settled once"
        else:
            assert peer.expect(Disposition, Flow) == Disposition(False, 0, None, True, ACCEPTED)
        peer.credit(1, handle=1, received=1)
        peer.send(Transfer(0, 1, b"2", 0), payload=request_message(**properties))
        assert peer.expect(Transfer)[0].delivery_tag == b"\x02\x00\x00\x00"


# --- silence


def test_silent_client_receives_an_echo_request_then_is_disconnected() -> None:
    with Emulator({"hub": 1}, idle_timeout=1.0) as emulator, RawPeer.opened(emulator) as peer:
        peer.attach_receiver(f"{PARTITION}0")
        flow = peer.expect(Flow)
        assert (flow.handle, flow.echo) == (None, True)
        peer.send(Flow(1, 1000, 0, 1000))
        assert peer.expect(Flow, Close).echo, "sent frames count"
        ended = [peer.expect(Flow, Detach, End, Close) for _ in range(3)]
        assert [type(frame) for frame in ended] == [Detach, End, Close]
        assert {condition(frame) for frame in ended} == {"amqp:connection:forced"}
        assert {"more than the allowed 1000 milliseconds" in frame.error.value[1] for frame in ended} == {True}


# --- deliveries


@pytest.fixture(params=[True, False], ids=["settled", "unsettled"])
def delivering(request: pytest.FixtureRequest) -> Iterator[tuple[Emulator, bool]]:
    with Emulator({"hub": 1}, settled=request.param) as running:
        yield running, request.param


def test_deliveries_are_settled_or_have_unique_tags(delivering: tuple[Emulator, bool]) -> None:
    emulator, settled = delivering
    emulator.append("hub", 0, [b"x", b"y" * 200_000, b"z"])
    with RawPeer.opened(emulator) as peer:
        peer.attach_receiver(f"{PARTITION}0")
        assert peer.expect(Attach).snd_settle_mode == (1 if settled else 0)
        peer.credit(10)
        tags: list[bytes] = []
        while len(tags) < 3:
            transfer, _ = peer.expect(Transfer)
            if transfer.delivery_tag is not None:
                assert bool(transfer.settled) is settled
                tags.append(transfer.delivery_tag)
        assert set(tags) == {b""} if settled else len(set(tags)) == 3


def test_header_is_dropped_and_delivery_annotations_are_kept(emulator: Emulator) -> None:
    emulator.add_hub("hub", 1)
    header, annotations, data, delivery_annotations = (
        encode(Described(ULong(section), value))
        for section, value in (
            (0x70, [True]),
            (0x72, {Symbol("x-opt-partition-key"): "key"}),
            (0x75, b"body"),
            (0x71, {Symbol("hop"): "1"}),
        )
    )
    with RawPeer.opened(emulator) as peer:
        peer.attach_sender("hub/Partitions/0")
        peer.send(Transfer(0, 0, b"t", 0), payload=header + annotations + data + delivery_annotations)
        assert peer.expect(Disposition, Close).state == ACCEPTED
    with RawPeer.reading(emulator, 1) as peer:
        payload = peer.expect(Transfer)[1]
    assert payload.startswith(b"\x00\x53\x72")
    assert payload.endswith(data + delivery_annotations)
    assert encode(Symbol("x-opt-partition-key")) + encode("key") in payload, "also for an event sent to a partition"


def test_credit_limits_deliveries_and_a_drain_returns_it(emulator: Emulator, connection: str) -> None:
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


# --- sending


def test_service_annotations_of_a_sender_are_replaced(connection: str) -> None:
    position = {"x-opt-sequence-number": 999, "x-opt-offset": "1", "x-opt-enqueued-time": 1}
    forged: dict[Any, Any] = {"x-opt-sequence-number-epoch": 9, **position, "kept": "k"}
    with producer(connection) as client:
        client.send_event(AmqpAnnotatedMessage(data_body=b"x", annotations=forged), partition_id="0")  # type: ignore
    with reader(connection) as events:
        event = events.read(1)[0]
    annotations = event.raw_amqp_message.annotations
    assert event.sequence_number == 0
    assert [*annotations] == [b"kept", b"x-opt-sequence-number-epoch", *map(str.encode, position)]
    assert annotations[b"x-opt-sequence-number-epoch"] == -1


def test_event_above_a_megabyte_is_rejected_and_the_link_stays(emulator: Emulator, connection: str) -> None:
    sizes = [MAX_MESSAGE_SIZE - 200, 1, 500_000]
    with producer(connection, retry_total=0) as client:
        with pytest.raises(EventHubError) as caught:
            client.send_event(EventData(b"x" * (MAX_MESSAGE_SIZE + 1)), partition_id="0")
        assert caught.value.error == "link:message-size-exceeded"
        for size in sizes:
            client.send_event(EventData(b"x" * size), partition_id="0")
    with reader(connection) as events:
        assert [len(body) for body in bodies(events.read(3))] == sizes


# --- missing entities


def test_missing_hub_is_refused(emulator: Emulator) -> None:
    """The token is refused, so the client reports an authentication error."""
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
def test_tokens_for_namespace_and_partitions_are_accepted(emulator: Emulator, connection: str, audience: str) -> None:
    with RawPeer.opened(emulator) as peer:
        answer = peer.request("$cbs", operation="put-token", type="jwt", name=audience)
    assert answer.application["status-code"] == 202


def test_missing_consumer_group_is_refused(emulator: Emulator, connection: str) -> None:
    error = refusal(connection, group="later")
    assert error.error == "not-found"
    assert "|later' could not be found" in str(error)
    emulator.add_consumer_group("hub", "later")
    with reader(connection, group="LATER"):
        pass


@pytest.mark.parametrize("partition", ["9", "²"])
def test_missing_partition_is_refused(connection: str, partition: str) -> None:
    error = refusal(connection, partition=partition)
    assert error.error == "argument-out-of-range"
    assert "It should be between 0 and 3" in str(error)
    with producer(connection, retry_total=0) as client, pytest.raises(ConnectError, match="400"):
        client.get_partition_properties(partition)


def test_disabled_hub_is_refused(emulator: Emulator, connection: str) -> None:
    with reader(connection) as events, producer(connection, retry_total=0) as client:
        emulator.disable_hub("hub")
        assert detached(events).error == "entity-disabled"
        with pytest.raises(ConnectError, match="currently disabled"):
            client.get_eventhub_properties()
    assert refusal(connection).error == "entity-disabled"
    emulator.disable_hub("hub", False)
    with reader(connection):
        pass
