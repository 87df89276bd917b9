"""The AMQP layer without sockets: bytes in, events and bytes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.emulator.amqp import frames as f
from spark_ehbalance.emulator.amqp.connection import Connection
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.amqp.frames import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
    encode_frame,
)
from spark_ehbalance.emulator.amqp.session import Endpoint, Link
from tests.emulator.raw import PARTITION, Frame, condition, source, split_frames, target

RECEIVER = Attach("r", 0, True, source=source(f"{PARTITION}0"))
SENDER = Attach("s", 1, False, target=target("hub/Partitions/1"), initial_delivery_count=0)


class Peer(Connection):
    """A connection with its client's side; accepts all links, and settles every message."""

    def __init__(self) -> None:
        super().__init__("server", 60.0)
        self.events: list[tuple[Any, ...]] = []
        self.sent = b""
        self.attached: Any = None

    def on_open(self, heartbeat_interval: float | None) -> None:
        self.events.append(("open", heartbeat_interval))

    def make_endpoint(self, link: Link, attach: Attach) -> Endpoint:
        self.events.append(("attach", attach.handle))
        self.attached = link
        return RecordingEndpoint(self.events, link, attach.handle)

    def on_error(self, error: AmqpError) -> None:
        self.events.append(("error", error.condition))

    def flush(self) -> None:
        self.sent += self.take()

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        """Process `data` and return its events."""
        before = len(self.events)
        self.receive_data(data)
        self.flush()
        return self.events[before:]

    def send(self, *performatives: Any, payload: bytes = b"") -> list[tuple[Any, ...]]:
        return self.feed(b"".join(encode_frame(0, performative, payload) for performative in performatives))

    def received(self) -> list[Frame]:
        """The frames from the server since the last call."""
        self.flush()
        sent, self.sent = self.sent, b""
        return split_frames(sent.removeprefix(f.AMQP_HEADER))

    def open(self, **fields: Any) -> Peer:
        """Header, open and a session on channel 0."""
        self.feed(f.AMQP_HEADER)
        self.send(Open("client", **fields), Begin(None, 0, 1000, 1000))
        self.received()
        return self

    def attach(self, attach: Attach) -> Any:
        """The link of an accepted attach."""
        assert self.send(attach) == [("attach", attach.handle)]
        self.received()
        return self.attached


class RecordingEndpoint(Endpoint):
    def __init__(self, events: list[tuple[Any, ...]], link: Any, handle: int) -> None:
        self._events, self._link, self._handle = events, link, handle

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        self._events.append(("message", message, message_format, delivery_id))
        self._link.settle(delivery_id, f.ACCEPTED)

    def on_capacity(self) -> None:
        self._events.append(("capacity", self._handle))

    def on_detached(self) -> None:
        self._events.append(("detached", self._handle))


SENT = [
    (Open("client", max_frame_size=600, idle_time_out=4000), b""),
    (Begin(None, 0, 1000, 1000), b""),
    (RECEIVER, b""),
    (SENDER, b""),
    (Flow(1, 1000, 0, 1000, handle=0, link_credit=5, echo=True), b""),
    (Transfer(1, 0, b"t", 0, more=True), b"first "),
    (Transfer(1, more=False), b"second"),
    (Transfer(1, 1, b"t", 7), b"whole"),
    (Disposition(True, 0, 0, True), b""),
    (Detach(1, True), b""),
    (End(), b""),
    (f.Close(), b""),
]
SASL = f.SASL_HEADER + encode_frame(0, f.SaslInit("ANONYMOUS", b""))
CONVERSATION = SASL + f.AMQP_HEADER + b"".join(encode_frame(0, *frame) for frame in SENT)


def test_conversation_cut_at_any_byte_has_the_same_result() -> None:
    whole = Peer()
    assert whole.feed(CONVERSATION) == [
        ("open", 2.0),
        ("attach", 0),
        ("attach", 1),
        ("capacity", 0),
        ("message", b"first second", 0, 0),
        ("message", b"whole", 7, 1),
        ("detached", 1),
        ("detached", 0),
    ]
    assert whole.closed
    cuts = [[CONVERSATION[:at], CONVERSATION[at:]] for at in range(1, len(CONVERSATION))]
    for parts in (*cuts, [bytes([byte]) for byte in CONVERSATION]):
        cut = Peer()
        for part in parts:
            cut.feed(part)
        assert (cut.events, cut.sent) == (whole.events, whole.sent)


@given(
    st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), max_size=6),
    st.binary(max_size=300),
    st.integers(1, 99),
)
def test_damaged_bytes_never_raise(damage: list[tuple[int, int]], garbage: bytes, size: int) -> None:
    damaged = bytearray(CONVERSATION)
    for at, byte in damage:
        damaged[at] = byte
    peer = Peer()
    for start in range(0, len(damaged), size):
        peer.feed(bytes(damaged[start : start + size]))
    peer.feed(garbage)
    assert not peer.closed or peer.feed(f.AMQP_HEADER) == [], "a closed connection ignores further bytes"


# --- sessions and links


def test_detach_and_close_happen_once_and_end_reception() -> None:
    peer = Peer().open()
    link = peer.attach(SENDER)
    link.detach(AmqpError("amqp:link:stolen", "taken over"))
    link.detach()
    assert peer.events[-1] == ("detached", 1)
    assert [condition(frame) for frame, _ in peer.received()] == ["amqp:link:stolen"]
    assert peer.send(Transfer(1, 0, b"t", 0), payload=b"late") == []
    link.settle(0, f.ACCEPTED)
    assert peer.send(Detach(1, True)) == []
    assert peer.received() == []
    peer.close(AmqpError("amqp:connection:forced", "idle"))
    peer.close(AmqpError("amqp:internal-error", "again"))
    assert [condition(frame) for frame, _ in peer.received()] == ["amqp:connection:forced"] * 2, "of both"
    assert peer.send(Begin(None, 0, 1, 1)) == []


# --- credit, windows and messages


def test_long_message_is_sent_within_the_window() -> None:
    peer = Peer().open(max_frame_size=512)
    link = peer.attach(RECEIVER)
    assert link.capacity == 0
    peer.send(Flow(1, 2, 0, 1000, handle=0, link_credit=2))
    message = bytes(range(250)) * 6
    link.send(message)
    frames = peer.received()
    assert len(frames) == 2
    assert link.capacity == 0, "the message is incomplete"
    assert not link.continue_message()
    for received in range(2, 6):
        peer.send(Flow(1 + received, 1, 0, 1000))
        link.continue_message()
        frames += peer.received()
    assert link.continue_message()
    assert b"".join(payload for _, payload in frames) == message
    assert [frame.more for frame, _ in frames] == [True] * (len(frames) - 1) + [False]
    first, *others = (frame for frame, _ in frames)
    assert (first.delivery_id, first.delivery_tag, first.settled, first.batchable) == (0, b"", True, True)
    assert {frame[1:5] for frame in others} == {(None,) * 4}, "a continuation has neither id nor tag"
    assert all(len(encode_frame(0, *frame)) <= 512 for frame in frames)
    peer.send(Flow(1 + len(frames), 1, 0, 1000))
    assert link.capacity == 1


@pytest.mark.parametrize("frames", [1, 20])
def test_credit_and_window_of_a_sender_are_renewed(frames: int) -> None:
    peer = Peer().open()
    peer.send(SENDER)
    message = [Transfer(1, 0, b"t", 0, True, more=left > 0) for left in reversed(range(frames))]
    credit = window = sent = 0
    while sent < 12_000 // frames:
        for flow in (frame for frame, _ in peer.received() if isinstance(frame, Flow)):
            credit = credit if flow.handle is None else flow.delivery_count + flow.link_credit
            window = flow.next_incoming_id + flow.incoming_window
        allowed = min(credit, window // frames) - sent
        assert allowed > 0, "a sender that keeps to its credit and window is never stuck"
        assert len(peer.send(*message * allowed, payload=b"x")) == allowed
        sent += allowed


def test_aborted_message_is_dropped() -> None:
    peer = Peer().open()
    peer.attach(SENDER)
    peer.send(Transfer(1, 0, b"t", 0, more=True), payload=b"gone")
    assert peer.send(Transfer(1, aborted=True)) == []
    assert peer.send(Transfer(1, 1, b"t", 0), payload=b"kept") == [("message", b"kept", 0, 1)]
