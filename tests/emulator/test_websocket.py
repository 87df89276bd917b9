"""AMQP over websocket, for the real client; and peers that break its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, TransportType
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER
from tests.emulator.clients import Reader, numbers, producer
from tests.emulator.raw import RawPeer

PATH = "/$servicebus/websocket"


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
    with Emulator(websocket_port=0) as running:
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


# --- peers of its own


class Peer(RawPeer):
    """A websocket of which each frame is sent by hand."""

    def __init__(
        self, emulator: Emulator, url: str = f"localhost{PATH}", subprotocol: str = "AMQPWSB10", origins: Any = ()
    ) -> None:
        super().__init__(emulator.websocket_port)
        self.websocket = ClientProtocol(parse_uri(f"ws://{url}"), subprotocols=[Subprotocol(subprotocol)])
        self._events: list[object] = []
        request = self.websocket.connect()
        for each in origins:
            request.headers["Origin"] = each
        self.websocket.send_request(request)
        response = self.next_event()
        assert isinstance(response, Response)
        self.headers, self.status = response.headers, response.status_code

    def flush(self) -> None:
        if data := b"".join(self.websocket.data_to_send()):
            self.socket.sendall(data)

    def next_event(self) -> object:
        """The server's next response or frame. Raises EOFError at the end."""
        self.flush()
        while not self._events:
            if not (data := self.socket.recv(1 << 16)):
                raise EOFError
            self.websocket.receive_data(data)
            self._events += self.websocket.events_received()
        return self._events.pop(0)

    def next_frame(self) -> tuple[Opcode, bytes]:
        """The kind and the data of the next frame."""
        frame = self.next_event()
        assert isinstance(frame, Frame)
        return frame.opcode, bytes(frame.data)

    def closed(self) -> int | None:
        """The code with which the server closes the websocket, None if it does so without one."""
        try:
            while True:
                self.next_event()
        except (EOFError, ConnectionError):
            return self.websocket.close_rcvd.code if self.websocket.close_rcvd else None


def test_amqp_in_any_frames(emulator: Emulator) -> None:
    with Peer(emulator) as peer:
        assert peer.status == 101
        assert peer.headers["Sec-WebSocket-Protocol"] == "AMQPWSB10"
        peer.websocket.send_binary(b"AM", fin=False)
        peer.websocket.send_ping(b"between")
        peer.websocket.send_continuation(b"QP", fin=False)
        peer.websocket.send_continuation(b"", fin=False)
        peer.websocket.send_continuation(AMQP_HEADER[4:], fin=True)
        assert peer.next_frame() == (Opcode.PONG, b"between")
        assert peer.next_frame() == (Opcode.BINARY, AMQP_HEADER)
        peer.websocket.send_pong(b"")
        peer.websocket.send_close(1000)
        assert peer.closed() == 1000


def test_the_subprotocol_has_two_names(emulator: Emulator) -> None:
    with Peer(emulator, subprotocol="amqp") as peer:
        assert (peer.status, peer.headers["Sec-WebSocket-Protocol"]) == (101, "amqp")


@pytest.mark.parametrize(
    ("path", "subprotocol", "status"), [("/", "AMQPWSB10", 404), ("/hub", "AMQPWSB10", 404), (PATH, "chat", 400)]
)
def test_another_path_or_subprotocol_is_refused(
    emulator: Emulator, bystander: Reader, path: str, subprotocol: str, status: int
) -> None:
    with Peer(emulator, f"localhost{path}", subprotocol) as peer:
        assert peer.status == status


@pytest.mark.parametrize(
    ("host", "origins", "status"),
    [
        ("localhost:8080", ["http://evil.example"], 403),
        ("localhost:8080", ["null"], 403),
        ("localhost:8080", ["http://localhost:3000"], 403),  # another program's page
        ("localhost:8080", ["http://localhost:8080", "http://evil.example"], 403),
        ("rebound.evil.example:8080", ["http://rebound.evil.example:8080"], 403),  # a name that leads here by now
        ("localhost:8080", ["http://localhost:8080"], 101),  # as the real client does
        ("emulator", ["http://emulator"], 101),
    ],
)
def test_a_page_in_a_browser_is_refused(
    emulator: Emulator, bystander: Reader, host: str, origins: list[str], status: int
) -> None:
    with Peer(emulator, host + PATH, origins=origins) as peer:
        assert peer.status == status


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"\x81\x80\0\0\0\0", 1003), (b"\x83\x80\0\0\0\0", 1002), (b"\x82\0", 1002)],
    ids=["text", "unknown", "no mask"],
)
def test_a_wrong_frame_closes_the_websocket(emulator: Emulator, bystander: Reader, sent: bytes, code: int) -> None:
    with Peer(emulator) as peer:
        peer.socket.sendall(sent)
        assert peer.closed() == code
