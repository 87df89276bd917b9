"""Reading a websocket returns only its payload, however its frames are built and split; and the end of a connection."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import websocket
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator.certificates import issue_certificate
from spark_ehbalance.eventhub.wire.sources import WebSocketSource, source_of
from spark_ehbalance.eventhub.wire.values import MalformedError

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(data: bytes, kind: int = BINARY, *, last: bool = True, bits: int = 0, mask: int = 0) -> bytes:
    size = len(data)
    short = size if size < 126 else 126 if size < 65536 else 127
    length = b"" if size < 126 else struct.pack(">H", size) if size < 65536 else struct.pack(">Q", size)
    return bytes([kind | 0x80 * last | bits, short | mask]) + length + data


class Peer:
    """The peer of a websocket of the client's library, after the handshake."""

    def __init__(self) -> None:
        self.socket, ours = socket.socketpair()
        self.socket.settimeout(10)
        self.websocket = websocket.WebSocket(enable_multithread=True)
        self.websocket.sock, self.websocket.connected = ours, True
        self.source = WebSocketSource(self.websocket)
        self.sizes = iter(lambda: 1 << 16, 0)

    def read(self, count: int) -> bytes:
        """Read `count` bytes into buffers of `sizes`."""
        found = bytearray()
        while len(found) < count:
            buffer = bytearray(next(self.sizes))
            with memoryview(buffer) as view:
                found += view[: self.source.read_into(view, 10)]
        return bytes(found)

    def sent(self) -> tuple[int, bytes]:
        """The kind and the data of the next frame that the client sent."""
        head = self.socket.recv(2, socket.MSG_WAITALL)
        assert head[1] & 0x80, "a client masks what it sends"
        mask, data = (self.socket.recv(size, socket.MSG_WAITALL) for size in (4, head[1] & 0x7F))
        return head[0] & 0x0F, bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.socket.close()
    made.websocket.shutdown()


def send_in_cuts(sock: socket.socket, stream: bytes, size: int) -> None:
    size = max(size, len(stream) // 1000)
    for start in range(0, len(stream), size):
        sock.sendall(stream[start : start + size])


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 300), st.integers(65_500, 65_600), st.just(140_000)),
            st.sampled_from(["message", "begin", "continue", "ping", "pong", "long ping"]),
        ),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 1000),
)
def test_payload_is_independent_of_frames_and_pieces(pieces: list[tuple[int, str]], seed: int) -> None:
    randomly, peer = random.Random(seed), Peer()
    try:
        stream, expected, pongs = b"", b"", list[tuple[int, bytes]]()
        for size, kind in pieces:
            data = randomly.randbytes(size)
            if kind in ("ping", "long ping", "pong"):
                payload = data[:125] if kind == "long ping" else b""
                stream += frame(payload, PONG if kind == "pong" else PING)
                pongs += [(PONG, payload)] * (kind != "pong")
            else:
                expected += data
                stream += frame(data, CONTINUED if kind == "continue" else BINARY, last=kind == "message")
        stream += frame(b"end")
        peer.sizes = iter(lambda: randomly.choice([200, 5_000, 1 << 20]), 0)
        sender = threading.Thread(target=send_in_cuts, args=(peer.socket, stream, randomly.choice([9, 4_000, 60_000])))
        sender.start()
        assert peer.read(len(expected) + 3) == expected + b"end"
        sender.join()
        assert [peer.sent() for _ in pongs] == pongs
    finally:
        peer.socket.close()
        peer.websocket.shutdown()


@pytest.mark.parametrize("size", [126, 65_536])
def test_frame_header_can_arrive_byte_by_byte(peer: Peer, size: int) -> None:
    stream, found = frame(bytes(size)), 0
    with memoryview(bytearray(1 << 17)) as view:
        assert peer.source.read_into(view, 0.0) == 0, "nothing has come"
        for start, end in pairwise([*range(12), len(stream)]):
            peer.socket.sendall(stream[start:end])
            found += peer.source.read_into(view, 10)
    assert found == size


def test_data_before_a_close_is_read_first(peer: Peer) -> None:
    peer.socket.sendall(frame(b"the reason") + frame(struct.pack(">H", 1001) + b"bye", CLOSE))
    assert peer.read(10) == b"the reason"
    with pytest.raises(ConnectionError, match="closed the websocket with code 1001"):
        peer.read(1)
    assert peer.sent()[0] == CLOSE


def test_data_before_the_end_of_a_tls_connection_is_read_first(tmp_path: Path) -> None:
    """Such as acknowledgements, whose batches would be sent again, or the reason for the end."""
    certificate = issue_certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate.server_file)
    trusting = ssl.create_default_context(cafile=certificate.ca_file)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(serving.wrap_socket, theirs, server_side=True)
        sock = trusting.wrap_socket(ours, server_hostname="localhost")
        peer = accepted.result()
    with sock:
        peer.sendall(b"the reason")
        peer.close()
        source, buffer = source_of(SimpleNamespace(sock=sock)), bytearray(100)
        with memoryview(buffer) as view:
            assert bytes(view[: source.read_into(view, 10)]) == b"the reason"
            with pytest.raises(ConnectionError, match="the peer closed the connection"):
                source.read_into(view, 10)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(b"text", TEXT), "kind 1"),
        (frame(b"", 5), "kind 5"),
        (frame(b"x", bits=0x40), "extension or a mask"),
        (frame(b"x", mask=0x80), "extension or a mask"),
        (frame(b"x" * 126, PING), "control frame of 126 bytes"),
    ],
)
def test_invalid_server_frames_end_the_connection(peer: Peer, sent: bytes, why: str) -> None:
    peer.socket.sendall(frame(b"data") + sent)
    assert peer.read(4) == b"data"
    with pytest.raises(MalformedError, match=why):
        peer.read(1)


def test_close_notifies_the_peer_without_waiting(peer: Peer) -> None:
    peer.socket.sendall(frame(b"x" * 1000)[:500])  # the client's own `close` would read on
    peer.read(400)
    read = list[int]()
    peer.websocket.recv_frame = lambda: read.append(1)
    peer.websocket.close()
    assert not read
    assert peer.sent()[0] == CLOSE
    assert peer.socket.recv(1) == b""
    assert peer.websocket.sock is None
