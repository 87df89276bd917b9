"""Peers that break the protocol: each loses its own connection, while a real client continues to read."""

from __future__ import annotations

import socket
import struct
import time
import tracemalloc

import pytest

from spark_ehbalance.emulator import Emulator, client
from spark_ehbalance.emulator.amqp import frames as f
from spark_ehbalance.emulator.amqp.codec import Described, Symbol, ULong, encode
from spark_ehbalance.emulator.amqp.frames import Attach, Begin, Detach, Open, Transfer, encode_frame
from tests.emulator.raw import PARTITION, RawPeer, condition

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


def _ends(peer: RawPeer) -> bool:
    """Whether the server ends the connection, with a close or without."""
    peer.close_condition()
    try:
        return peer.socket.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", GARBAGE)
def test_garbage_before_the_open_ends_the_connection(emulator: Emulator, sent: bytes) -> None:
    with RawPeer(emulator) as peer:
        peer.socket.sendall(sent)
        received = b"".join(iter(lambda: peer.socket.recv(1000), b""))
        assert received[:8] == f.SASL_HEADER, "what it expects"


def _header(size: int, words: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", size, words, kind, 0)


HOSTILE_ARRAY = b"\x00\x53\x12\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40"


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
        (_header(21) + HOSTILE_ARRAY, "amqp:decode-error"),
        (_header(3008) + b"\x00" * 3000, "amqp:decode-error"),
        (encode_frame(0, Open("again")), "amqp:not-allowed"),
        (encode_frame(60_000, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (encode_frame(5_000, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
        (encode_frame(0, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
    ],
)
def test_bad_frames_close_the_connection_with_a_reason(emulator: Emulator, sent: bytes, condition: str) -> None:
    with RawPeer.opened(emulator) as peer:
        peer.socket.sendall(sent)
        assert peer.close_condition() == condition
        assert _ends(peer)


def test_a_malformed_source_refuses_only_the_link(emulator: Emulator) -> None:
    with RawPeer.opened(emulator) as peer:
        peer.send(Attach("a", 0, True, source=5))
        assert condition(peer.expect(Detach)) == "amqp:decode-error"
        peer.attach_receiver(f"{PARTITION}0", handle=1)
        peer.expect(Attach)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\xa0\x01x",
        b"\x00\x53\x75\xc0\x01\x00",  # data that is a list
        b"\x00\x53\x75\xb0\x00\x00\xff\xff",  # cut off
        b"\x00\x53\x99\x40",  # an unknown section
        b"\x00\x53\x72\xc1\x02\x01\x40",  # annotations without a value
        b"\x00\x53\x74\xc1\x05\x02\xa1\x01\xff\x40",  # a property that is no text
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


def test_a_peer_that_sends_nothing_is_disconnected() -> None:
    with Emulator(handshake_timeout=0.5) as emulator, RawPeer(emulator) as peer:
        begun = time.monotonic()
        assert _ends(peer)
        assert time.monotonic() - begun < 5


def test_a_silent_peer_is_disconnected_unless_it_sends_heartbeats() -> None:
    with Emulator(idle_timeout=1.0) as emulator, RawPeer.opened(emulator) as silent:
        with RawPeer.opened(emulator, idle_time_out=400) as alive:
            begun = time.monotonic()
            beats = 0
            while time.monotonic() < begun + 2.5:
                assert alive.next() is None
                alive.socket.sendall(f.EMPTY_FRAME)
                beats += 1
        assert beats >= 8
        assert silent.close_condition() == "amqp:connection:forced"


def test_a_reader_that_does_not_read_uses_little_memory(emulator: Emulator) -> None:
    count, size = 500, 100_000
    emulator.append("hub", 1, [b"x" * size] * count)
    with RawPeer(emulator) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        peer.open()
        peer.attach_receiver(f"{PARTITION}1")
        peer.credit(1000, window=1_000_000)
        peer.expect(Transfer)
        for _ in range(count):  # more turns of the server's loop than it needs to send all
            emulator.partition_state("hub", 1)
        emulator.trim("hub", 1, count)  # what has not been handed to the socket is never sent
        emulator.append("hub", 1, [b"last"])
        buffered = 1
        while b"last" not in peer.expect(Transfer)[1][-10:]:
            buffered += 1
        assert buffered * size < 20 << 20


def test_a_peer_that_sends_and_never_reads_is_no_longer_read(emulator: Emulator) -> None:
    with RawPeer.reading(emulator) as peer:
        request = encode_frame(0, Attach("n" * 60_000, 1, True))  # refused; the answer repeats the name
        peer.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            peer.socket.sendall(request * 2000)


MANY = {Symbol(f"{number}"): number for number in range(300)}


@pytest.mark.parametrize(("address", "refused"), [(f"{PARTITION}0", True), ("$cbs", False)])
def test_what_links_were_asked_with_is_not_kept(address: str, refused: bool) -> None:
    """15 MB of refused attaches took 1.1 GB; and `$cbs` takes links from everybody."""
    with Emulator({"hub": 1}, sas_keys={"name": "key"}) as guarded, RawPeer.opened(guarded) as peer:
        for handle in [*range(256), *[255] * refused]:  # the handle of a refused link is free
            peer.attach_receiver(address, handle, properties=MANY)
            peer.expect(Attach)
            if refused:
                assert condition(peer.expect(Detach)) == "amqp:unauthorized-access"
            if handle == 0:
                tracemalloc.start()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < (2 if refused else 4) << 20


def test_links_of_a_session_and_of_a_connection_are_limited(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawPeer(emulator) as peer:
        assert peer.open()[1].handle_max == 255
        peer.attach_receiver("$cbs", 255)
        peer.expect(Attach)
        peer.attach_receiver("$cbs", 256)
        assert condition(peer.expect(f.End)) == "amqp:not-allowed"
    monkeypatch.setattr(client, "_MAX_LINKS", 10)
    with RawPeer.opened(emulator) as peer:
        for handle in range(10):
            peer.attach_receiver("$cbs", handle)
            peer.expect(Attach)
        peer.attach_receiver("$cbs", 10)
        assert condition(peer.expect(Detach)) == "amqp:resource-limit-exceeded"
        peer.send(Detach(0, True))
        peer.expect(Detach)
        peer.attach_receiver("$cbs", 10)
        peer.expect(Attach)
