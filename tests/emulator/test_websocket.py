"""Websockets of peers that violate the protocol; `tests/eventhub/test_wire_link.py` tests the real client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import AMQP_HEADER
from tests.emulator.clients import Reader

PATH = "/$servicebus/websocket"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(websocket_port=0) as running:
        yield running


def opened(
    emulator: Emulator, url: str = f"localhost{PATH}", subprotocol: str = "AMQPWSB10", *origins: str
) -> ClientConnection:
    sock = socket.create_connection(("127.0.0.1", emulator.websocket_port), timeout=10)
    headers = [("Origin", origin) for origin in origins]
    names = [Subprotocol(subprotocol)]
    return connect(f"ws://{url}", sock=sock, subprotocols=names, additional_headers=headers, compression=None)


@pytest.mark.parametrize("subprotocol", ["AMQPWSB10", "amqp"])
def test_amqp_in_fragmented_frames(emulator: Emulator, subprotocol: str) -> None:
    with opened(emulator, subprotocol=subprotocol) as peer:
        pongs = list[threading.Event]()

        def fragments() -> Iterator[bytes]:
            yield b"AM"
            pongs.append(peer.ping(b"between"))
            yield from (b"QP", b"", AMQP_HEADER[4:])

        assert peer.subprotocol == subprotocol
        peer.send(fragments())
        assert peer.recv(10) == AMQP_HEADER
        assert pongs[0].wait(10)


HOST = "localhost:8080"


@pytest.mark.parametrize(
    ("url", "subprotocol", "origins", "status"),
    [
        ("localhost/", "AMQPWSB10", [], 404),
        ("localhost/hub", "AMQPWSB10", [], 404),
        (f"localhost{PATH}", "chat", [], 400),
        (HOST + PATH, "AMQPWSB10", ["http://evil.example"], 403),
        (HOST + PATH, "AMQPWSB10", ["null"], 403),
        (HOST + PATH, "AMQPWSB10", ["http://localhost:3000"], 403),  # another program's page
        (HOST + PATH, "AMQPWSB10", [f"http://{HOST}", "http://evil.example"], 403),
        (f"rebound.example:80{PATH}", "AMQPWSB10", ["http://rebound.example:80"], 403),  # DNS rebinding
        (HOST + PATH, "AMQPWSB10", [f"http://{HOST}"], 101),  # as the real client does
        (f"emulator{PATH}", "AMQPWSB10", ["http://emulator"], 101),
    ],
)
def test_other_paths_subprotocols_and_web_pages_are_refused(
    emulator: Emulator, bystander: Reader, url: str, subprotocol: str, origins: list[str], status: int
) -> None:
    if status == 101:
        opened(emulator, url, subprotocol, *origins).close()
    else:
        with pytest.raises(InvalidStatus) as refused:
            opened(emulator, url, subprotocol, *origins)
        assert refused.value.response.status_code == status


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"\x81\x80\0\0\0\0", 1003), (b"\x83\x80\0\0\0\0", 1002), (b"\x82\0", 1002)],
    ids=["text", "unknown", "no mask"],
)
def test_invalid_frame_closes_the_websocket(emulator: Emulator, bystander: Reader, sent: bytes, code: int) -> None:
    with opened(emulator) as peer:
        peer.socket.sendall(sent)
        with pytest.raises(ConnectionClosed) as closed:
            peer.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code
