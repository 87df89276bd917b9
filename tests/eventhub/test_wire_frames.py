"""Frames that the client handles itself: what a peer can send, and the cost of reading it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from azure.eventhub._pyamqp._decode import decode_frame

from spark_ehbalance.emulator.amqp import codec
from spark_ehbalance.emulator.amqp import frames as server
from spark_ehbalance.emulator.amqp.codec import Array, Described, Symbol, UInt, ULong
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.sender import Sender
from spark_ehbalance.eventhub.wire.frames import FrameReader, decoded
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from spark_ehbalance.eventhub.wire.values import MalformedError, decode
from spark_ehbalance.query.options import stream_options
from tests.eventhub.receiving import address_of, reading
from tests.proxy import HttpProxy

HUGE = 1 << 28


def frame(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


def fields(count: int, encoded: bytes) -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + len(encoded), count) + encoded


def array(count: int, constructor: bytes = b"\x40") -> bytes:
    return b"\xf0" + struct.pack(">II", 4 + len(constructor), count) + constructor


HOSTILE: dict[str, tuple[bytes, str]] = {
    "an array": (frame(b"\x00\x53\x40" + fields(1, array(HUGE)), 1), "zero-byte elements"),
    "a small array": (frame(b"\x00\x53\x10" + fields(1, array(1))), "zero-byte elements"),
    "an array in a described one": (frame(b"\x00\x53\x10" + fields(1, b"\x00\x53\x24" + array(HUGE))), "zero-byte"),
    "a list": (frame(b"\x00\x53\x16\xd0" + struct.pack(">II", 4, HUGE)), "invalid AMQP"),
    "no performative": (frame(b"\x40\x53\x13\xd0" + struct.pack(">II", 4, HUGE)), "not begin with a performative"),
    "fields that are no list": (frame(b"\x00\x53\x13\x45\x00\x01" + array(HUGE)), ""),
    "nested values": (frame(b"\x00\x53\x10" + b"\xc0\x02\x01" * 3000), "invalid AMQP"),
    "deliveries": (
        server.encode_frame(0, server.Disposition(True, 7, 2**32 - 1, True, server.ACCEPTED)),
        "too many deliveries",
    ),
}

#: Dispositions whose fields have the wrong type, which raised the error for an unsupported version of the client.
MISTYPED = [
    server.Disposition(True, 7, None, True, 5),
    server.Disposition(True, 7, None, True, [5]),
    server.Disposition(True, 7, None, True, Described(ULong(0x25), [5])),
    server.Disposition(True, 7, None, True, Described(ULong(0x25), {"a": 1})),
]


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The peak number of bytes that Python allocated in the test."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_frames_are_rejected_without_allocating(what: str, peak: Callable[[], int]) -> None:
    sent, reason = HOSTILE[what]
    if what == "fields that are no list":
        assert decoded(sent) == (0x13, [None] * 11), "the rest is ignored"
    else:
        with pytest.raises(MalformedError, match=reason):
            decoded(sent)
    assert peak() < 4 << 20


@pytest.mark.parametrize("performative", MISTYPED)
def test_mistyped_dispositions_are_rejected(performative: server.Disposition) -> None:
    with pytest.raises(MalformedError, match="invalid AMQP"):
        decoded(server.encode_frame(0, performative))


def test_omitted_fields_of_an_error_do_not_change_later_lists() -> None:
    """All empty lists are one object. After such a rejection, events with empty lists contained nulls."""
    assert decode(b"\x45", 0) == ([], 1)
    rejected, closed = b"\x15\xc0\x09\x05\x41\x43\x40\x41\x00\x53\x25\x45", b"\x18\xc0\x05\x01\x00\x53\x1d\x45"
    assert decoded(frame(b"\x00\x53" + rejected))[1][4] == {"rejected": [None]}
    assert decoded(frame(b"\x00\x53" + closed))[1] == [[None] * 3]
    assert decode(b"\x45", 0) == ([], 1)


SOUND = [
    server.Open("hub", None, 65536, 4999, 240_000),
    server.Begin(0, 1, 1000, 1000, 255),
    server.Attach("r", 0, False, source=Described(ULong(0x28), ["a", *[None] * 10])),
    server.Flow(0, 1000, 0, 1000, 0, 0, 300),
    server.Disposition(True, 7, None, True, server.ACCEPTED),
    server.Disposition(True, 7, 9, True, server.rejected(AmqpError("amqp:not-found", "no"))),
    server.Detach(0, True, server.error_field(AmqpError("amqp:link:stolen", "epoch '9'"))),
    server.Close(server.error_field(AmqpError("amqp:connection:forced", "x" * 300))),
    server.End(None),
    server.Detach(0, True),
    server.Detach(0, True, Described(ULong(0x1D), [Symbol("amqp:link:detach-forced"), None, None])),
    server.Disposition(True, 7, 7, True, Described(ULong(0x25), [None])),
    server.SaslMechanisms(Array([Symbol("ANONYMOUS"), Symbol("EXTERNAL")])),
]


def without_nulls(value: Any) -> Any:
    """A list without trailing nulls, recursively, as most servers send it. The client ignores the source."""
    if isinstance(value, Described) and value.descriptor != 0x28:
        return Described(value.descriptor, without_nulls(value.value))
    if type(value) is not list:
        return value
    kept = [without_nulls(field) for field in value]
    while kept and kept[-1] is None:
        kept.pop()
    return kept


@pytest.mark.parametrize("performative", SOUND, ids=lambda value: type(value).__name__)
def test_valid_frames_are_decoded_as_by_the_client(performative: Any) -> None:
    sent = server.encode_frame(0, performative)
    assert decoded(sent) == decode_frame(memoryview(sent)[8:])
    if sent[10] < 0x40:  # the client does not decode SASL frames with omitted fields
        fields = codec.decode(sent, 11)[0]
        assert decoded(frame(sent[8:11] + codec.encode(without_nulls(fields)))) == decoded(sent)


def test_omitted_limits_have_defaults() -> None:
    sent = (server.Open("hub", None), server.Begin(0, 1, 1000, 1000))
    opened, begun = (decoded(server.encode_frame(0, performative))[1] for performative in sent)
    assert (opened[2:4], begun[4]) == ([2**32 - 1, 2**16 - 1], 2**32 - 1)


def test_token_answers_and_heartbeats_are_decoded() -> None:
    transfer = b"\x00\x53\x14" + fields(11, b"\x43\x43\xa0\x00\x43\x41\x42" + b"\x40" * 5)
    code, given = decoded(frame(transfer + (message := b"\x00\x53\x77\xa1\x02ok")))
    assert (code, given[:5], bytes(given[-1])) == (0x14, [0, 0, b"", 0, True], message)
    assert decoded(server.EMPTY_FRAME) == (1, b"EMPTY")


# --- over a connection -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["a large frame", "an array"])
def hostile(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A peer that answers AMQP's first bytes with data that costs memory."""
    array = server.SASL_HEADER + HOSTILE["an array"][0]
    sent = array if request.param == "an array" else struct.pack(">IBBH", HUGE, 2, 0, 0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(sent)
        while await reader.read(100):
            pass
        writer.close()

    with HttpProxy(handler=answer) as peer:
        string = f"Endpoint=sb://127.0.0.1:{peer.port};SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=hub"
        yield stream_options({"connectionString": f"{string};UseDevelopmentEmulator=true"}).connection


def receives(connection: Connection) -> None:
    with reading(address_of(None, connection)) as reader:
        reader.receive(1, 1.0)


def sends(connection: Connection) -> None:
    sender = Sender(connection, "0")
    try:
        sender.most_bytes(Deadline(60.0))
    finally:
        sender.close()


def requests(connection: Connection) -> None:
    with HubMetadata(connection, "$Default") as metadata:
        metadata.partition_ids()


@pytest.mark.parametrize("call", [receives, sends, requests])
def test_hostile_peer_costs_neither_memory_nor_time(
    hostile: Connection, call: Callable[[Connection], None], peak: Callable[[], int]
) -> None:
    with pytest.raises((TransientError, HubUnavailableError), match=r"a frame of \d+ bytes|an invalid AMQP frame"):
        call(hostile)
    assert peak() < 32 << 20


@pytest.fixture
def pair() -> Iterator[tuple[FrameReader, socket.socket]]:
    """A reader, and the socket of its peer."""
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.settimeout(10)
        yield FrameReader(SimpleNamespace(sock=ours, socket_lock=threading.Lock(), write=ours.sendall), 512), peer


def disposition(*fields: Any) -> bytes:
    return frame(codec.encode(Described(ULong(0x15), list(fields))))


ACCEPTED = Described(ULong(0x24), [])
REJECTED = Described(ULong(0x25), [None])

#: Dispositions that accept one delivery, and its number.
TAKEN = {
    "smallest": (disposition(True, UInt(0), None, True, ACCEPTED), 0),
    "short": (disposition(True, UInt(7), UInt(7), True, ACCEPTED, None), 7),
    "long": (disposition(True, UInt(0x01020304), UInt(0x01020304), True, ACCEPTED, False), 0x01020304),
    "a list that is not empty": (frame(b"\x00\x53\x15\xc0\x0b\x05\x41\x52\x09\x40\x41\x00\x53\x24\xc0\x01\x00"), 9),
}
LEFT = {
    "rejected": disposition(True, UInt(7), None, True, REJECTED),
    "several": disposition(True, UInt(7), UInt(8), True, ACCEPTED),
    "not settled": disposition(True, UInt(7), None, False, ACCEPTED),
    "by a sender": disposition(False, UInt(7), None, True, ACCEPTED),
    "empty": frame(b""),
    "larger than its fields": frame(TAKEN["short"][0][8:] + b"\x40"),
}


@pytest.mark.parametrize("other", LEFT.values(), ids=LEFT)
def test_acceptances_are_taken_up_to_another_frame(pair: tuple[FrameReader, socket.socket], other: bytes) -> None:
    reader, peer = pair
    numbers = [number for _, number in TAKEN.values()]
    for data, number in TAKEN.values():
        assert decoded(data) == (0x15, [True, number, ANY, True, {"accepted": []}, ANY]), "as the client handles it"
    peer.sendall(b"".join(data for data, _ in TAKEN.values()) + other + TAKEN["short"][0])
    assert reader.has_frame(waits=True)
    assert reader.take_accepted() == numbers
    assert reader.take_accepted() == []
    assert reader.receive_frame() == (0, decoded(other))
    assert reader.take_accepted() == [7]
    assert not reader.has_frame()


def test_incomplete_acceptance_is_left(pair: tuple[FrameReader, socket.socket]) -> None:
    reader, peer = pair
    data, number = TAKEN["long"]
    peer.sendall(data[:-1])
    assert not reader.has_frame()
    assert reader.take_accepted() == []
    peer.sendall(data[-1:])
    assert reader.has_frame()
    assert reader.take_accepted() == [number]


def test_has_frame_finds_a_buffered_frame(pair: tuple[FrameReader, socket.socket]) -> None:
    """The socket has no more data to read."""
    reader, peer = pair
    assert not reader.has_frame()
    empty = frame(b"")
    peer.sendall(empty + empty + empty[:5])
    for _ in range(2):
        assert reader.has_frame()
        assert reader.receive_frame() == (0, (1, b"EMPTY"))
    assert not reader.has_frame()
    peer.sendall(empty[5:])
    assert reader.has_frame()
    reader.receive_frame()
    assert not reader.broken
    peer.close()
    reader.write(empty)
    assert reader.broken, "the reason is read first"
    assert reader.has_frame(), "it would raise"
    with pytest.raises(ConnectionError):
        reader.receive_frame()


def test_error_found_by_has_frame_is_raised(pair: tuple[FrameReader, socket.socket]) -> None:
    """A socket reports a reset once, and a websocket the peer's close frame; later reads find the end of the stream."""
    reader, peer = pair
    reader.write(b"unread data makes the peer reset the connection")
    peer.close()
    assert reader.has_frame(waits=True)
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            reader.receive_frame()
