"""Peers that violate the protocol: only their own connection is closed, while a real client continues to read."""

from __future__ import annotations

import struct

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp import frames as f
from spark_ehbalance.emulator.amqp.codec import Described, ULong, encode
from spark_ehbalance.emulator.amqp.frames import Begin, Open, Transfer, encode_frame
from tests.emulator.raw import RawPeer

pytestmark = pytest.mark.usefixtures("bystander")
GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"AMQP\x00\x00\x09\x01",
    b"AMQPxxxx",
    f.SASL_HEADER + b"\xff" * 100,
    f.SASL_HEADER + f.EMPTY_FRAME,
    f.SASL_HEADER + struct.pack(">IBBH", 2**31, 2, 1, 0),
    f.SASL_HEADER + encode_frame(0, Open("x")),
    f.SASL_HEADER + f.SASL_HEADER,
]


def _is_closed(peer: RawPeer) -> bool:
    """Whether the server ends the connection, with a close or without."""
    peer.close_condition()
    try:
        return peer.socket.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", GARBAGE)
def test_garbage_before_the_open_closes_the_connection(emulator: Emulator, sent: bytes) -> None:
    with RawPeer(emulator) as peer:
        peer.socket.sendall(sent)
        received = b"".join(iter(lambda: peer.socket.recv(1000), b""))
        assert received[:8] == f.SASL_HEADER, "the server sends the header that it expects"


def _header(size: int, words: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", size, words, kind, 0)


@pytest.mark.parametrize(
    ("sent", "condition"),
    [
        (b"\x93" * 64, "amqp:connection:framing-error"),
        (_header(70_000), "amqp:connection:framing-error"),
        (_header(4), "amqp:connection:framing-error"),
        (_header(8, words=1), "amqp:connection:framing-error"),
        (_header(9, words=4) + b"\x40", "amqp:connection:framing-error"),
        (_header(8, kind=7), "amqp:connection:framing-error"),
        (_header(8, kind=1), "amqp:not-allowed"),
        (_header(9) + b"\x40", "amqp:decode-error"),
        (encode_frame(0, Open("again")), "amqp:not-allowed"),
        (encode_frame(5_000, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (encode_frame(0, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
    ],
)
def test_bad_frames_close_the_connection_with_a_reason(emulator: Emulator, sent: bytes, condition: str) -> None:
    with RawPeer.opened(emulator) as peer:
        peer.socket.sendall(sent)
        assert peer.close_condition() == condition
        assert _is_closed(peer)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\x00\x53\x75\xb0\x00\x00\xff\xff",  # truncated
        b"\x00\x53\x99\x40",  # an unknown section
        b"\x00\x53\x72\x45",  # annotations that are a list
    ],
)
def test_malformed_messages_are_never_stored(emulator: Emulator, payload: bytes, batch: bool) -> None:
    if batch:
        good = encode(Described(ULong(0x75), b"good"))
        payload = b"".join(encode(Described(ULong(0x75), inner)) for inner in (good, payload))
    with RawPeer.opened(emulator) as peer:
        peer.attach_sender("hub/Partitions/0")
        peer.send(Transfer(0, 0, b"t", 0x80013700 if batch else 0), payload=payload)
        assert peer.close_condition() == "amqp:decode-error"
    assert emulator.partition_state("hub", 0).next_sequence_number == 0
