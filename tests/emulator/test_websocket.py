"""AMQP over websocket, for the real client; and peers that break its protocol."""

from __future__ import annotations

import base64
import os
import random
import struct
from collections.abc import Iterator

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, TransportType

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER, SASL_HEADER

from .clients import Reader, numbers, producer, read
from .raw import RawPeer

PATH, SUBPROTOCOL = "/$servicebus/websocket", "AMQPWSB10"
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def settings(emulator: Emulator) -> dict[str, object]:
    return {
        "custom_endpoint_address": f"sb://localhost:{emulator.websocket_port}",
        "transport_type": TransportType.AmqpOverWebsocket,
        "socket_timeout": 1.5,  # with less it may give up while it connects
        "retry_total": 3,
    }


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def either(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    with Emulator({"hub": 2}, tls=request.param, websocket_port=0) as running:
        yield running


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(websocket_port=0, handshake_timeout=1.0) as running:
        yield running


def test_the_real_client_sends_reads_and_asks(either: Emulator) -> None:
    string, way = either.connection_string("hub"), settings(either)
    if "UseDevelopmentEmulator" not in string:
        way["connection_verify"] = str(either.ca_file)
    with producer(string, **way) as client:
        client.send_batch([EventData(bytes(n)) for n in range(300)], partition_id="0")
        client.send_batch([EventData(bytes(900_000))], partition_id="0")
    either.append("hub", 0, [bytes(900_000)] * 2)
    events: list[EventData] = []
    consumer = EventHubConsumerClient.from_connection_string(string, "$Default", **way)  # type: ignore[arg-type]

    def take(_: object, batch: list[EventData]) -> None:
        events.extend(batch)
        if len(events) == 303:
            consumer.close()

    with consumer:
        assert consumer.get_partition_properties("0")["last_enqueued_sequence_number"] == 302
        consumer.receive_batch(take, partition_id="0", starting_position="-1")  # type: ignore[arg-type]
    assert numbers(events) == list(range(303))
    assert [len(event.body_as_str()) for event in events[298:]] == [298, 299, 900_000, 900_000, 900_000]


def test_both_ports_serve_the_same_hubs(emulator: Emulator, connection: str) -> None:
    with producer(connection, **settings(emulator)) as client:
        client.send_batch([EventData(b"x")], partition_id="1")
    assert numbers(read(connection, 1, "1")) == [0]


# --- peers of its own


class Peer(RawPeer):
    """A websocket by hand."""

    def __init__(
        self, emulator: Emulator, path: str = PATH, subprotocol: str | None = SUBPROTOCOL, *headers: str
    ) -> None:
        super().__init__(emulator.websocket_port)
        lines = [
            f"GET {path} HTTP/1.1", *(headers or ["Host: localhost"]), "Upgrade: websocket", "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}", "Sec-WebSocket-Version: 13",
        ]  # fmt: skip
        lines += [] if subprotocol is None else [f"Sec-WebSocket-Protocol: {subprotocol}"]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            self.head += self.take(1)

    def send_frame(self, data: bytes, kind: int = BINARY, *, last: bool = True, masked: bool = True) -> None:
        mask = os.urandom(4) if masked else b""
        size = bytes([len(data) | 0x80 * masked]) if len(data) < 126 else bytes([126 | 0x80 * masked])
        size += b"" if len(data) < 126 else struct.pack(">H", len(data))
        body = bytes(each ^ mask[n % 4] for n, each in enumerate(data)) if masked else data
        self.socket.sendall(bytes([kind | 0x80 * last]) + size + mask + body)

    def next_frame(self) -> tuple[int, bytes]:
        """Kind and data of the next frame. Raises EOFError at the end."""
        head = self.take(2)
        size = head[1]
        if size == 126:
            (size,) = struct.unpack(">H", self.take(2))
        return head[0] & 0x0F, self.take(size)

    def closed(self) -> int | None:
        """The code with which the server closes the websocket, None if it does so without one."""
        try:
            while (frame := self.next_frame())[0] != CLOSE:
                pass
            return int.from_bytes(frame[1][:2], "big")
        except (EOFError, ConnectionResetError):
            return None


def test_amqp_in_any_frames(emulator: Emulator) -> None:
    with Peer(emulator) as peer:
        assert peer.head.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-protocol: amqpwsb10" in peer.head.lower()
        assert b"sec-websocket-extensions" not in peer.head.lower()
        peer.send_frame(b"AM", last=False)
        peer.send_frame(b"between", PING)
        peer.send_frame(b"QP", CONTINUED, last=False)
        peer.send_frame(b"", CONTINUED, last=False)
        peer.send_frame(AMQP_HEADER[4:], CONTINUED)
        assert peer.next_frame() == (PONG, b"between")
        assert peer.next_frame() == (BINARY, AMQP_HEADER)
        peer.send_frame(b"", PONG)
        peer.send_frame(struct.pack(">H", 1000), CLOSE)
        assert peer.closed() == 1000
        with pytest.raises(EOFError):
            peer.next_frame()


@pytest.mark.parametrize(
    ("path", "subprotocol", "status"),
    [("/", SUBPROTOCOL, b"404"), ("/hub", SUBPROTOCOL, b"404"), (PATH, None, b"400"), (PATH, "chat", b"400")],
)
def test_another_path_or_subprotocol_is_refused(
    emulator: Emulator, bystander: Reader, path: str, subprotocol: str | None, status: bytes
) -> None:
    with Peer(emulator, path, subprotocol) as peer:
        assert peer.head.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("host", "origins"),
    [
        ("localhost:8080", ["http://evil.example"]),
        ("localhost:8080", ["null"]),
        ("localhost:8080", ["http://localhost:3000"]),  # another program's page
        ("localhost:8080", ["http://localhost:8080.evil.example"]),
        ("localhost:8080", [""]),
        ("localhost:8080", ["http://localhost:8080", "http://evil.example"]),
        ("localhost:8080", ["http://evil.example", "http://evil.example"]),
        ("rebound.evil.example:8080", ["http://rebound.evil.example:8080"]),  # a name that leads here by now
        ("rebound.evil.example", ["http://rebound.evil.example"]),
    ],
)
def test_a_page_in_a_browser_is_refused(emulator: Emulator, bystander: Reader, host: str, origins: list[str]) -> None:
    headers = [f"Host: {host}", *(f"Origin: {each}" for each in origins)]
    with Peer(emulator, PATH, SUBPROTOCOL, *headers) as peer:
        assert peer.head.startswith(b"HTTP/1.1 403")


def test_who_reads_no_answer_is_not_read_further() -> None:
    """Else the answers that wait for him fill the memory."""
    pings = b"\x89\xfd\0\0\0\0" + b"x" * 125  # with a mask of zeros
    with Emulator({"hub": 1}, websocket_port=0, handshake_timeout=60.0) as emulator, Peer(emulator) as peer:
        peer.socket.settimeout(3)
        with pytest.raises(TimeoutError):
            peer.socket.sendall(pings * 800_000)  # 100 MB
        assert all(each._transport.get_write_buffer_size() < 16 << 20 for each in emulator._server.clients)
        for _ in range(10_000):
            assert peer.next_frame() == (PONG, b"x" * 125)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "emulator:8080", "emulator"])
def test_a_client_that_names_the_server_as_its_origin_is_served(emulator: Emulator, host: str) -> None:
    with Peer(emulator, PATH, SUBPROTOCOL, f"Host: {host}", f"Origin: http://{host}") as peer:
        assert peer.head.startswith(b"HTTP/1.1 101 ")


GARBAGE = [
    b"AMQP\x03\x01\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"POST / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    bytes(100_000),
]


@pytest.mark.parametrize("sent", GARBAGE, ids=range(5))
def test_garbage_instead_of_a_request_ends_the_connection(emulator: Emulator, bystander: Reader, sent: bytes) -> None:
    with RawPeer(emulator.websocket_port) as peer:
        peer.finish(sent)


@pytest.mark.parametrize(
    ("frame", "code"),
    [((b"text", TEXT), 1003), ((b"x", 3), 1002), ((b"x", CONTINUED), 1002), ((b"x" * 126, PING), 1002)],
)
def test_a_wrong_frame_closes_the_websocket(
    emulator: Emulator, bystander: Reader, frame: tuple[bytes, int], code: int
) -> None:
    with Peer(emulator) as peer:
        peer.send_frame(*frame)
        assert peer.closed() == code


def test_a_client_must_mask(emulator: Emulator, bystander: Reader) -> None:
    with Peer(emulator) as peer:
        peer.send_frame(b"AMQP", masked=False)
        assert peer.closed() == 1002


def test_garbage_in_frames_ends_the_connection_as_without(emulator: Emulator, bystander: Reader) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", SASL_HEADER + b"\xff" * 100):
        with Peer(emulator) as peer:
            peer.send_frame(garbage)
            assert peer.closed() == 1000


def test_mutated_streams(emulator: Emulator, bystander: Reader) -> None:
    randomly = random.Random(7)
    stream = b"\x82\x88" + b"\0" * 4 + SASL_HEADER + b"\x89\x80" + b"\0" * 4 + b"\x82\xfe\x04\x00" + b"\0" * 1028
    for _ in range(100):
        mutated = bytearray(stream)
        for _ in range(randomly.randint(1, 6)):
            mutated[randomly.randrange(40)] = randomly.randrange(256)
        with Peer(emulator) as peer:
            peer.finish(mutated[: randomly.randrange(len(mutated))])


def test_who_asks_for_nothing_is_disconnected(emulator: Emulator) -> None:
    with RawPeer(emulator.websocket_port) as silent:
        assert silent.socket.recv(1) == b""
    with Peer(emulator) as peer:  # which says nothing in AMQP
        assert peer.closed() is None


def test_faults_reach_websockets_too(emulator: Emulator) -> None:
    with Peer(emulator) as peer:
        peer.send_frame(AMQP_HEADER)
        peer.next_frame()
        emulator.drop_connections()
        assert peer.closed() is None
