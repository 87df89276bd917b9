"""Peers that break the protocol: each loses its own connection, while a real client continues to read."""

from __future__ import annotations

import random
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from spark_ehbalance.emulator import Emulator, client_connection
from spark_ehbalance.emulator.amqp.codec import Described, Symbol, ULong, encode
from spark_ehbalance.emulator.amqp.frames import (
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
    Transfer,
    encode_frame,
)
from spark_ehbalance.emulator.amqp.link import MAX_MESSAGE_SIZE

from .clients import Reader, numbers, reader
from .raw import RawPeer

ADDRESS = "hub/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture
def bystander(emulator: Emulator) -> Iterator[Reader]:
    """A real client that reads `hub`, and that is still served at the end of the test."""
    emulator.add_hub("hub", 2)
    with reader(emulator.connection_string("hub")) as events:
        yield events
        count = len(events.events)
        emulator.append("hub", 0, [b"x"] * 3)
        assert numbers(events.read(count + 3))[-1] == emulator.partition_state("hub", 0).next_sequence_number - 1


def _ends(peer: RawPeer) -> bool:
    """Whether the server ends the connection, with a close or without."""
    peer.close_condition()
    try:
        return peer.socket.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"AMQP\x00\x00\x09\x01",
        b"AMQPxxxx",
        SASL_HEADER + b"\xff" * 100,
        SASL_HEADER + EMPTY_FRAME,
        SASL_HEADER + struct.pack(">IBBH", 2**31, 2, 1, 0),
        SASL_HEADER + encode_frame(0, Open("x")),
        SASL_HEADER + SASL_HEADER,
    ],
)
def test_garbage_before_the_open_ends_the_connection(emulator: Emulator, bystander: Reader, sent: bytes) -> None:
    with RawPeer(emulator) as peer:
        peer.socket.sendall(sent)
        received = b""
        while data := peer.socket.recv(1000):
            received += data
        assert received[:8] in (SASL_HEADER, AMQP_HEADER)


BAD_FRAMES = {
    "random": (b"\x93" * 64, "amqp:connection:framing-error"),
    "too large": (struct.pack(">IBBH", 70_000, 2, 0, 0), "amqp:connection:framing-error"),
    "too small": (struct.pack(">IBBH", 4, 2, 0, 0), "amqp:connection:framing-error"),
    "bad offset": (struct.pack(">IBBH", 8, 1, 0, 0), "amqp:connection:framing-error"),
    "bad type": (struct.pack(">IBBH", 8, 2, 7, 0), "amqp:connection:framing-error"),
    "sasl frame": (struct.pack(">IBBH", 8, 2, 1, 0), "amqp:not-allowed"),
    "no performative": (struct.pack(">IBBH", 9, 2, 0, 0) + b"\x40", "amqp:decode-error"),
    "hostile array": (
        struct.pack(">IBBH", 21, 2, 0, 0) + b"\x00\x53\x12\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
        "amqp:decode-error",
    ),
    "nested": (struct.pack(">IBBH", 8 + 3000, 2, 0, 0) + b"\x00" * 3000, "amqp:decode-error"),
    "second open": (encode_frame(0, Open("again")), "amqp:not-allowed"),
    "channel too high": (encode_frame(60_000, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
    "channel in use": (encode_frame(0, Begin(None, 0, 1, 1)), "amqp:not-allowed"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frames_close_the_connection_with_a_reason(emulator: Emulator, bystander: Reader, name: str) -> None:
    sent, condition = BAD_FRAMES[name]
    with RawPeer(emulator) as peer:
        peer.open()
        peer.socket.sendall(sent)
        assert peer.close_condition() == condition
        assert _ends(peer)


def test_a_malformed_source_refuses_only_the_link(emulator: Emulator, bystander: Reader) -> None:
    with RawPeer(emulator) as peer:
        peer.open()
        peer.send(Attach("a", 0, True, source=5))
        assert peer.expect(Detach).error.value[0] == "amqp:decode-error"
        peer.attach_receiver(ADDRESS, handle=1)
        peer.expect(Attach)


def test_an_error_in_a_session_ends_only_the_session(emulator: Emulator, bystander: Reader) -> None:
    for wrong in (Transfer(5, 0, b"t", 0), Attach("a", 5000, True)):
        with RawPeer(emulator) as peer:
            peer.open()
            peer.send(wrong)
            assert peer.expect(End).error is not None
            peer.send(Close())
            assert peer.close_condition() is None


def test_a_handle_in_use_ends_the_session(emulator: Emulator, bystander: Reader) -> None:
    with RawPeer(emulator) as peer:
        peer.open()
        peer.attach_receiver(ADDRESS)
        peer.attach_receiver(ADDRESS)
        assert peer.expect(End).error.value[0] == "amqp:session:handle-in-use"


MALFORMED_MESSAGES = {
    "empty descriptor": b"\x00",
    "no section": b"\xa0\x01x",
    "data is a list": b"\x00\x53\x75\xc0\x01\x00",
    "cut data": b"\x00\x53\x75\xb0\x00\x00\xff\xff",
    "unknown section": b"\x00\x53\x99\x40",
    "bad annotations": b"\x00\x53\x72\xc1\x02\x01\x40",
    "bad properties": b"\x00\x53\x74\xc1\x05\x02\xa1\x01\xff\x40",
}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", MALFORMED_MESSAGES)
def test_malformed_messages_are_never_stored(emulator: Emulator, bystander: Reader, name: str, batch: bool) -> None:
    payload = MALFORMED_MESSAGES[name]
    good = encode(Described(ULong(0x75), b"good"))
    if batch:
        payload = b"".join(encode(Described(ULong(0x75), inner)) for inner in (good, payload))
    with RawPeer(emulator) as peer:
        peer.open()
        peer.attach_sender("hub/Partitions/0")
        peer.send(Transfer(0, 0, b"t", 0x80013700 if batch else 0), payload=payload)
        assert peer.close_condition() == "amqp:decode-error"
    assert emulator.partition_state("hub", 0).next_sequence_number == 0


def test_a_message_without_end_is_refused_and_not_stored(emulator: Emulator, bystander: Reader) -> None:
    with RawPeer(emulator) as peer:
        peer.open()
        peer.attach_sender("hub/Partitions/0")
        part = b"x" * 60_000
        for _ in range(2 * MAX_MESSAGE_SIZE // len(part)):
            peer.send(Transfer(0, 0, b"t", 0, more=True), payload=part)
        peer.send(Transfer(0, more=False))
        assert peer.expect(Disposition).state.value[0].value[0] == "amqp:link:message-size-exceeded"
        peer.send(Transfer(0, 1, b"t", 0, more=True), payload=part)
        peer.send(Transfer(0, aborted=True))
        peer.send(Transfer(0, 2, b"t", 0), payload=b"\x00\x53\x75\xa0\x01x")
        assert peer.expect(Disposition).state.descriptor == 0x24
    assert emulator.partition_state("hub", 0).next_sequence_number == 1


def test_random_and_mutated_streams(emulator: Emulator, bystander: Reader) -> None:
    randomly = random.Random(7)
    stream = b"".join(
        encode_frame(0, performative)
        for performative in (
            Open("x", properties={Symbol("a"): "b"}),
            Begin(None, 0, 10, 10),
            Attach("a", 0, True, source=Described(ULong(0x28), [ADDRESS] + [None] * 10)),
            Attach("b", 1, False, target=Described(ULong(0x29), ["hub/Partitions/1"] + [None] * 6)),
            Attach("c", 2, False, target=Described(ULong(0x29), ["$management"] + [None] * 6)),
            Flow(0, 10, 0, 10, 0, 0, 10),
            Transfer(1, 0, b"t", 0),
            Transfer(2, 1, b"t", 0),
            Disposition(False, 0),
            Detach(0),
            End(),
        )
    )
    for round_ in range(150):
        mutated = bytearray(stream)
        for _ in range(randomly.randint(1, 6)):
            mutated[randomly.randrange(len(mutated))] = randomly.randrange(256)
        with socket.create_connection(("127.0.0.1", emulator.port), timeout=10) as client:
            client.sendall(AMQP_HEADER + mutated[: randomly.randrange(len(mutated))])
            if round_ % 3:
                client.shutdown(socket.SHUT_WR)
                try:
                    while client.recv(1 << 16):
                        pass
                except ConnectionResetError:
                    pass


def test_a_peer_that_sends_nothing_is_disconnected() -> None:
    with Emulator(handshake_timeout=0.5) as emulator, RawPeer(emulator) as peer:
        begun = time.monotonic()
        assert _ends(peer)
        assert time.monotonic() - begun < 5


def test_a_silent_peer_is_disconnected_unless_it_sends_heartbeats() -> None:
    with Emulator(idle_timeout=1.0) as emulator, RawPeer(emulator) as silent, RawPeer(emulator) as alive:
        silent.open()
        alive.open(idle_time_out=400)
        begun = time.monotonic()
        beats = 0
        while time.monotonic() < begun + 2.5:
            assert alive.next() is None
            alive.socket.sendall(EMPTY_FRAME)
            beats += 1
        assert beats >= 8
        assert silent.close_condition() == "amqp:connection:forced"


def test_a_reader_that_does_not_read_uses_little_memory(emulator: Emulator, bystander: Reader) -> None:
    count, size = 500, 100_000
    emulator.append("hub", 1, [b"x" * size] * count)
    with RawPeer(emulator) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        peer.open()
        peer.attach_receiver("hub/ConsumerGroups/$Default/Partitions/1")
        peer.expect(Attach)
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


def test_a_peer_that_sends_and_never_reads_is_no_longer_read(emulator: Emulator, bystander: Reader) -> None:
    with RawPeer(emulator) as peer:
        peer.open()
        peer.attach_receiver(ADDRESS)
        request = encode_frame(0, Attach("n" * 60_000, 1, True))  # refused; the answer repeats the name
        peer.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            peer.socket.sendall(request * 2000)


def test_refused_attaches_are_not_kept() -> None:
    """15 MB of them took 1.1 GB."""
    with Emulator({"hub": 1}, sas_keys={"name": "key"}) as guarded, RawPeer(guarded) as peer:
        peer.open()
        many = {Symbol(f"{number}"): number for number in range(300)}

        def refused(handle: int) -> None:
            peer.attach_receiver(ADDRESS, handle, properties=many)
            peer.expect(Attach)
            assert peer.expect(Detach).error.value[0] == "amqp:unauthorized-access"

        refused(0)
        tracemalloc.start()
        for handle in range(1, 256):
            refused(handle)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 2 << 20
        refused(255)  # its handle is free


def test_what_accepted_links_were_asked_with_is_not_kept() -> None:
    """`$cbs` takes links from everybody."""
    with Emulator({"hub": 1}, sas_keys={"name": "key"}) as guarded, RawPeer(guarded) as peer:
        peer.open()
        many = {Symbol(f"{number}"): number for number in range(300)}
        peer.attach_receiver("$cbs", 0, properties=many)
        peer.expect(Attach)
        tracemalloc.start()
        for handle in range(1, 256):
            peer.attach_receiver("$cbs", handle, properties=many)
            peer.expect(Attach)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 4 << 20


def test_links_of_a_session_and_of_a_connection_are_limited(
    emulator: Emulator, bystander: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawPeer(emulator) as peer:
        peer.socket.sendall(AMQP_HEADER)
        peer._take(8)
        peer.send(Open("test"), Begin(None, 0, 1000, 1000))
        peer.expect(Open)
        assert peer.expect(Begin).handle_max == 255
        peer.attach_receiver("$cbs", 255)
        peer.expect(Attach)
        peer.attach_receiver("$cbs", 256)
        assert peer.expect(End).error.value[0] == "amqp:not-allowed"
    monkeypatch.setattr(client_connection, "_MAX_LINKS", 10)
    with RawPeer(emulator) as peer:
        peer.open()
        for handle in range(10):
            peer.attach_receiver("$cbs", handle)
            peer.expect(Attach)
        peer.attach_receiver("$cbs", 10)
        assert peer.expect(Detach).error.value[0] == "amqp:resource-limit-exceeded"
        peer.send(Detach(0, True))
        peer.expect(Detach)
        peer.attach_receiver("$cbs", 10)
        peer.expect(Attach)
