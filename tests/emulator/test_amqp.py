"""The AMQP layer without sockets: bytes in, events and bytes out."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.emulator import amqp
from spark_ehbalance.emulator.amqp.channel import Channel, Output
from spark_ehbalance.emulator.amqp.codec import Described, ULong
from spark_ehbalance.emulator.amqp.connection import MAX_FRAME_SIZE, Connection
from spark_ehbalance.emulator.amqp.errors import NOT_FOUND, AmqpError
from spark_ehbalance.emulator.amqp.events import (
    AttachRequested,
    AuthenticationRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditChanged,
    Event,
    LinkDetached,
    MessageReceived,
    SessionFailed,
)
from spark_ehbalance.emulator.amqp.fast_transfer import HEADER_SIZE
from spark_ehbalance.emulator.amqp.frames import (
    ACCEPTED,
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_HEADER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    SaslOutcome,
    Transfer,
    encode_frame,
)
from spark_ehbalance.emulator.amqp.link import MAX_MESSAGE_SIZE, IncomingLink, OutgoingLink

from .raw import Frame, split_frames

SOURCE = Described(ULong(0x28), ["from"] + [None] * 10)
TARGET = Described(ULong(0x29), ["to"] + [None] * 6)
RECEIVER = Attach("r", 0, True, source=SOURCE)
SENDER = Attach("s", 1, False, target=TARGET, initial_delivery_count=0)
WIDE = {"incoming_window": 1000, "next_outgoing_id": 0, "outgoing_window": 1000}


class Peer:
    """The client's side of a connection; accepts every link, and settles every message."""

    def __init__(self) -> None:
        self.connection = Connection("server", 60.0)
        self.events: list[Event] = []
        self.sent = b""
        self.passes = True

    def feed(self, data: bytes) -> list[Event]:
        """The events of `data`, each answered before the next is asked for."""
        events = []
        for event in self.connection.receive_data(data):
            events.append(event)
            self._answer(event)
        self.events += events
        self.sent += self.connection.data_to_send()
        return events

    def _answer(self, event: Event) -> None:
        if isinstance(event, AuthenticationRequested):
            self.connection.authenticate(self.passes)
        elif isinstance(event, AttachRequested):
            event.link.accept()
        elif isinstance(event, MessageReceived):
            event.link.settle(event.delivery_id, ACCEPTED)

    def send(self, *performatives: Performative, payload: bytes = b"") -> list[Event]:
        return self.feed(b"".join(encode_frame(0, each, payload) for each in performatives))

    def received(self) -> list[Frame]:
        """The frames from the server since the last call."""
        self.sent += self.connection.data_to_send()
        sent, self.sent = self.sent, b""
        return split_frames(sent.removeprefix(AMQP_HEADER))

    def open(self, **fields: Any) -> Peer:
        """Header, open and a session on channel 0."""
        self.feed(AMQP_HEADER)
        self.send(Open("client", **fields), Begin(None, 0, 1000, 1000))
        self.received()
        return self

    def attach(self, attach: Attach) -> Any:
        """The link of an accepted attach."""
        (event,) = self.send(attach)
        assert isinstance(event, AttachRequested)
        self.received()
        return event.link

    def credit(self, amount: int, **fields: Any) -> list[Event]:
        return self.send(Flow(0, handle=0, link_credit=amount, **(WIDE | fields)))


def kinds(frames: Iterable[Frame | Event]) -> list[type]:
    return [type(each[0]) if isinstance(each[0], Performative) else type(each) for each in frames]


def conditions(frames: Iterable[Frame]) -> list[str | None]:
    """The error conditions of the frames that can have one."""
    ends = [frame for frame, _ in frames if isinstance(frame, Close | End | Detach)]
    return [None if end.error is None else str(end.error.value[0]) for end in ends]


def test_a_connection_opens() -> None:
    peer = Peer()
    assert peer.feed(AMQP_HEADER + encode_frame(0, Open("client", idle_time_out=3000))) == [ConnectionOpened(1.5)]
    assert peer.sent.startswith(AMQP_HEADER)
    ((opened, _),) = peer.received()
    assert (opened.container_id, opened.max_frame_size) == ("server", MAX_FRAME_SIZE)
    assert opened.idle_time_out == 60_000, "milliseconds"


def test_a_heartbeat_is_an_empty_frame_in_both_directions() -> None:
    peer = Peer().open()
    assert peer.feed(EMPTY_FRAME) == []
    peer.connection.send_heartbeat()
    assert peer.connection.data_to_send() == EMPTY_FRAME


# --- SASL

SASL = SASL_HEADER + encode_frame(0, SaslInit("PLAIN", b"\0name\0key"))  # type: ignore[arg-type]


def test_nothing_is_decoded_before_authentication_is_answered() -> None:
    connection = Connection("server", 60.0)
    opening = AMQP_HEADER + encode_frame(0, Open("client"))
    assert list(connection.receive_data(SASL + opening)) == [AuthenticationRequested("PLAIN", b"\0name\0key")]
    assert list(connection.receive_data(b"")) == []
    connection.authenticate(True)
    assert list(connection.receive_data(b"")) == [ConnectionOpened(None)]


def test_a_refused_authentication_closes_the_connection() -> None:
    peer = Peer()
    peer.passes = False
    peer.feed(SASL + AMQP_HEADER + encode_frame(0, Open("client")))
    assert peer.connection.closed
    assert not peer.connection.opened
    ((outcome, _),) = split_frames(peer.sent.removeprefix(SASL_HEADER))[1:]
    assert outcome == SaslOutcome(1)


# --- cut and damaged bytes

CONVERSATION = (
    SASL
    + AMQP_HEADER
    + b"".join(
        encode_frame(0, performative, payload)
        for performative, payload in (
            (Open("client", max_frame_size=600, idle_time_out=4000), b""),
            (Begin(None, 0, 1000, 1000), b""),
            (RECEIVER, b""),
            (SENDER, b""),
            (Flow(0, handle=0, link_credit=5, echo=True, **WIDE), b""),
            (Transfer(1, 0, b"t", 0, more=True), b"first "),
            (Transfer(1, more=False), b"second"),
            (Transfer(1, 1, b"t", 7), b"whole"),
            (Disposition(True, 0, 0, True), b""),
            (Detach(1, True), b""),
            (End(), b""),
            (Close(), b""),
        )
    )
)


def _described(events: list[Event]) -> list[Any]:
    """The events with their links by handle, so that those of two connections compare."""
    return [
        (type(event), *(field.handle if isinstance(field, IncomingLink | OutgoingLink) else field for field in event))
        for event in events
    ]


def test_a_conversation_cut_at_any_byte_has_the_same_events_and_answers() -> None:
    whole = Peer()
    whole.feed(CONVERSATION)
    assert kinds(whole.events) == [
        AuthenticationRequested,
        ConnectionOpened,
        AttachRequested,
        AttachRequested,
        CreditChanged,
        MessageReceived,
        MessageReceived,
        LinkDetached,
        LinkDetached,
        ConnectionClosed,
    ]
    assert [event[1:] for event in whole.events if isinstance(event, MessageReceived)] == [
        (b"first second", 0, 0),
        (b"whole", 7, 1),
    ]
    cuts = [[CONVERSATION[:at], CONVERSATION[at:]] for at in range(1, len(CONVERSATION))]
    for parts in (*cuts, [bytes([byte]) for byte in CONVERSATION]):
        cut = Peer()
        for part in parts:
            cut.feed(part)
        assert _described(cut.events) == _described(whole.events)
        assert cut.sent == whole.sent


def test_no_damage_to_a_conversation_raises() -> None:
    chance = random.Random(5)
    for _ in range(500):
        damaged = bytearray(CONVERSATION)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        _feed_garbage(bytes(damaged), chance.randrange(1, len(damaged)))


@given(
    st.binary(max_size=300), st.sampled_from([b"", AMQP_HEADER, SASL_HEADER, CONVERSATION[:300]]), st.integers(1, 99)
)
def test_no_random_bytes_raise(garbage: bytes, before: bytes, size: int) -> None:
    _feed_garbage(before + garbage, size)


def _feed_garbage(data: bytes, size: int) -> None:
    """Nothing is raised; an error closes the connection, is the last event, and reaches the peer."""
    peer = Peer()
    for start in range(0, len(data), size):
        peer.feed(data[start : start + size])
    closed = [event for event in peer.events if isinstance(event, ConnectionClosed)]
    if peer.connection.closed:
        assert peer.events[-1:] == closed
        assert peer.feed(AMQP_HEADER) == []
    else:
        assert closed == []


@pytest.mark.parametrize("header", [b"GET / HTTP/1.1", b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_another_protocol_is_answered_with_the_expected_header(header: bytes) -> None:
    peer = Peer()
    (event,) = peer.feed(header)
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None
    assert peer.sent == SASL_HEADER


@pytest.mark.parametrize(
    ("frame", "condition"),
    [
        (encode_frame(0, Open("again")), "amqp:not-allowed"),
        (encode_frame(5000, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (encode_frame(0, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (bytes.fromhex("0000000904000000") + b"\x40", "amqp:connection:framing-error"),
        (bytes.fromhex("0000000902000000") + b"\x40", "amqp:decode-error"),
        (bytes.fromhex("0001000102000000"), "amqp:connection:framing-error"),
    ],
)
def test_an_error_of_the_peer_closes_the_connection(frame: bytes, condition: str) -> None:
    peer = Peer().open()
    peer.attach(RECEIVER)
    (event,) = peer.feed(frame + encode_frame(0, Detach(0)))
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None
    assert event.error.condition == condition
    assert conditions(peer.received()) == [condition]
    assert peer.connection.closed


def test_a_frame_before_the_open_is_an_error() -> None:
    peer = Peer()
    (event,) = peer.feed(AMQP_HEADER + encode_frame(0, Begin(None, 0, 1, 1)))
    assert isinstance(event, ConnectionClosed)
    assert kinds(peer.received()) == [Open, Close]


def test_closing_from_this_side_says_why_and_ignores_what_follows() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    peer.connection.close(AmqpError("amqp:connection:forced", "idle"))
    peer.connection.close(AmqpError("amqp:internal-error", "again"))
    link.detach()
    assert conditions(peer.received()) == ["amqp:connection:forced"]
    assert peer.send(Detach(0)) == []


@pytest.mark.parametrize(("announced", "refused"), [(511, True), (512, False), (None, False)])
def test_the_peer_s_frame_size(announced: int | None, refused: bool) -> None:
    peer = Peer()
    peer.feed(AMQP_HEADER + encode_frame(0, Open("client", max_frame_size=announced)))
    assert peer.connection.closed is refused
    if announced and not refused:
        assert peer.connection.max_frame_size == announced


def test_an_idle_timeout_that_is_too_short_is_refused() -> None:
    peer = Peer()
    peer.feed(AMQP_HEADER + encode_frame(0, Open("client", idle_time_out=199)))
    assert conditions(peer.received()) == ["amqp:not-allowed"]


# --- sessions and links

SESSION_ERRORS = {
    "unattached handle": (Transfer(5, 0, b"t", 0), "amqp:session:unattached-handle"),
    "handle too high": (Attach("a", 5000, True), "amqp:not-allowed"),
    "handle in use": (RECEIVER, "amqp:session:handle-in-use"),
    "transfer to a receiver": (Transfer(0, 0, b"t", 0), "amqp:not-allowed"),
}


@pytest.mark.parametrize("name", SESSION_ERRORS)
def test_an_error_in_a_session_ends_it_and_its_links_only(name: str) -> None:
    wrong, condition = SESSION_ERRORS[name]
    peer = Peer().open()
    receiver, sender = peer.attach(RECEIVER), peer.attach(SENDER)
    *detached, failed = peer.send(wrong)
    assert detached == [LinkDetached(receiver), LinkDetached(sender)]
    assert isinstance(failed, SessionFailed)
    assert failed.error.condition == condition
    assert conditions(peer.received()) == [condition]
    assert peer.send(Detach(0)) == [], "the peer does not know yet that the session has ended"
    peer.send(Begin(None, 0, 1, 1))
    assert kinds(peer.received()) == [Begin]
    assert peer.attach(RECEIVER) is not receiver


def test_a_session_that_the_peer_ends_is_answered() -> None:
    peer = Peer().open()
    link = peer.attach(SENDER)
    assert peer.send(End()) == [LinkDetached(link)]
    assert conditions(peer.received()) == [None]
    link.settle(3, ACCEPTED)
    assert peer.received() == []


def test_a_link_that_the_peer_detaches_is_answered() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    peer.credit(5)
    assert peer.send(Detach(0, True)) == [LinkDetached(link)]
    assert peer.received() == [(Detach(0, True), b"")]
    assert link.room == 0
    assert peer.send(Detach(0, True)) == []
    assert peer.attach(RECEIVER) is not link


def test_a_link_detached_from_this_side_ends_without_event() -> None:
    peer = Peer().open()
    link = peer.attach(SENDER)
    link.detach(AmqpError("amqp:link:stolen", "taken over"))
    link.detach()
    assert conditions(peer.received()) == ["amqp:link:stolen"]
    assert peer.send(Transfer(1, 0, b"t", 0), payload=b"late") == []
    link.settle(0, ACCEPTED)
    assert peer.send(Detach(1, True)) == []
    assert peer.received() == []


def test_a_refused_link_is_attached_and_detached() -> None:
    peer = Peer().open()
    (event,) = list(peer.connection.receive_data(encode_frame(0, Attach("r", 0, True))))
    assert isinstance(event, AttachRequested)
    event.link.refuse(AmqpError(NOT_FOUND, "no such hub"))
    (attach, _), (detach, _) = peer.received()
    assert attach.source is not None
    assert attach.target is not None
    assert detach.error.value[0] == NOT_FOUND


# --- credit, windows and messages


def test_room_is_the_smaller_of_credit_and_window() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    assert link.room == 0
    assert peer.credit(7) == [CreditChanged(link)]
    assert link.room == 7
    peer.credit(7, incoming_window=4)
    assert link.room == 4
    link.send(b"one")
    link.send(b"two")
    assert link.room == 2
    assert [(frame.delivery_id, payload) for frame, payload in peer.received()] == [(0, b"one"), (1, b"two")]
    # a flow that the peer sent when it had seen one delivery
    peer.send(Flow(1, 1000, 0, 1000, 0, 1, 7))
    assert link.room == 6


def test_a_flow_of_the_session_changes_all_its_outgoing_links() -> None:
    peer = Peer().open()
    links = [peer.attach(RECEIVER), peer.attach(RECEIVER._replace(handle=2))]
    peer.attach(SENDER)
    assert peer.send(Flow(0, 5, 0, 1000, echo=True)) == [CreditChanged(link) for link in links]
    ((flow, _),) = peer.received()
    assert (flow.handle, flow.next_incoming_id) == (None, 0)


def test_an_echo_reports_the_credit() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    peer.credit(3)
    link.send(b"x")
    peer.received()
    peer.credit(3, echo=True)
    ((flow, _),) = peer.received()
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 1, 2)


def test_draining_returns_the_credit_once() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    peer.credit(10, drain=True)
    link.send(b"x")
    peer.received()
    link.finish_drain()
    link.finish_drain()
    ((flow, _),) = peer.received()
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
    assert link.room == 0


def test_a_long_message_is_sent_as_the_window_allows() -> None:
    peer = Peer().open(max_frame_size=512)
    link = peer.attach(RECEIVER)
    peer.credit(2, incoming_window=2)
    message = bytes(range(250)) * 6
    link.send(message)
    frames = peer.received()
    assert len(frames) == 2
    assert link.room == 0, "the message is incomplete"
    assert not link.continue_message()
    for seen in range(2, 6):
        peer.send(Flow(seen, 1, 0, 1000))
        link.continue_message()
        frames += peer.received()
    assert link.continue_message()
    assert b"".join(payload for _, payload in frames) == message
    assert [frame.more for frame, _ in frames] == [True] * (len(frames) - 1) + [False]
    assert all(len(encode_frame(0, *frame)) <= 512 for frame in frames)
    peer.send(Flow(len(frames), 1, 0, 1000))
    assert link.room == 1


def _records(count: int) -> tuple[bytearray, list[int]]:
    size = HEADER_SIZE + 1
    return bytearray(count * size), list(range(0, (count + 1) * size, size))


def test_records_are_sent_in_place() -> None:
    peer = Peer().open()
    link = peer.attach(RECEIVER)
    peer.credit(3)
    data, starts = _records(3)
    link.send_records(data, starts)
    assert link.room == 0
    assert peer.connection.data_to_send() is data
    assert [frame.delivery_id for frame, _ in split_frames(bytes(data))] == [0, 1, 2]


def test_delivery_ids_wrap() -> None:
    output = Output()
    channel = Channel(output, 0, Begin(None, 0, 1000, 1000), first_delivery_id=2**32 - 3)
    link = OutgoingLink(channel, RECEIVER)
    link.on_flow(Flow(0, handle=0, link_credit=100, **WIDE))
    output.take()
    link.send_records(*_records(5))
    link.send(b"x")
    frames = split_frames(bytes(output.take()))
    assert [frame.delivery_id for frame, _ in frames] == [2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2]


def test_credit_and_window_of_a_sender_are_renewed() -> None:
    peer = Peer().open()
    (event,) = peer.send(SENDER)
    assert isinstance(event, AttachRequested)
    credit = window = sent = 0
    while sent < 12_000:
        for flow in (frame for frame, _ in peer.received() if isinstance(frame, Flow)):
            credit = credit if flow.handle is None else flow.delivery_count + flow.link_credit
            window = flow.next_incoming_id + flow.incoming_window
        allowed = min(credit, window) - sent
        assert allowed > 0, "a sender that keeps to its credit and window is never stuck"
        assert len(peer.send(*[Transfer(1, 0, b"t", 0, True)] * allowed, payload=b"x")) == allowed
        sent += allowed


@pytest.mark.parametrize(("settled", "delivery_id"), [(True, None), (False, 0)])
def test_a_settled_message_needs_no_answer(settled: bool, delivery_id: int | None) -> None:
    peer = Peer().open()
    link = peer.attach(SENDER)
    assert peer.send(Transfer(1, 0, b"t", 0, settled), payload=b"x") == [MessageReceived(link, b"x", 0, delivery_id)]
    assert kinds(peer.received()) == ([] if settled else [Disposition])


def test_an_aborted_message_is_dropped() -> None:
    peer = Peer().open()
    link = peer.attach(SENDER)
    peer.send(Transfer(1, 0, b"t", 0, more=True), payload=b"gone")
    assert peer.send(Transfer(1, aborted=True)) == []
    assert peer.send(Transfer(1, 1, b"t", 0), payload=b"kept") == [MessageReceived(link, b"kept", 0, 1)]


@pytest.mark.parametrize(("extra", "refused"), [(0, False), (1, True)])
def test_a_message_over_the_limit_is_refused_at_its_end(extra: int, refused: bool) -> None:
    peer = Peer().open()
    peer.attach(SENDER)
    part = b"x" * (MAX_MESSAGE_SIZE // 32)
    for _ in range(31):
        assert peer.send(Transfer(1, 0, b"t", 0, more=True), payload=part) == []
    events = peer.send(Transfer(1), payload=part + b"x" * extra)
    assert kinds(events) == ([] if refused else [MessageReceived])
    ((disposition, _),) = [frame for frame in peer.received() if isinstance(frame[0], Disposition)]
    assert disposition.state.descriptor == (0x25 if refused else 0x24)


# --- purity

PURE = {"__future__", "collections", "struct", "typing", "uuid"}


@pytest.mark.parametrize("path", sorted(Path(next(iter(amqp.__path__))).glob("*.py")), ids=lambda path: path.stem)
def test_the_layer_imports_no_io_no_clock_and_nothing_of_the_emulator(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= PURE
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.level == 0 and str(node.module).partition(".")[0] in PURE)
