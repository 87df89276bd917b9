"""AMQP over websocket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

PATH = "/$servicebus/websocket"  # the service's path, with the service's subprotocols
SUBPROTOCOLS = [Subprotocol("AMQPWSB10"), Subprotocol("amqp")]

#: Bytes per sent message. The service's message boundaries are not documented. Here they are unrelated to AMQP frames,
#: so that a client that relies on them fails.
_SENT_BYTES = 65_500
_MAX_RECEIVED_BYTES = 4 << 20  # bytes per received message


class WebSocketConnection(asyncio.Protocol):
    """The websocket of one client. `make` is called after a valid request, and creates the AMQP protocol."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._websocket = ServerProtocol(subprotocols=SUBPROTOCOLS, max_size=_MAX_RECEIVED_BYTES)
        self._inner = asyncio.Protocol()  # ignores everything until a valid request

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._websocket.receive_data(data)
        self._handle_events()

    def eof_received(self) -> bool:
        self._websocket.receive_eof()
        self._handle_events()
        return False

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _handle_events(self) -> None:
        for event in self._websocket.events_received():
            if isinstance(event, Request):
                self._respond(event)
            elif isinstance(event, Frame):
                self._handle_frame(event)
        self.flush()
        if self._websocket.close_expected() and type(self._inner) is asyncio.Protocol:
            self._transport.close()

    def _respond(self, request: Request) -> None:
        if request.path.rstrip("/").lower() != PATH:
            response = self._websocket.reject(HTTPStatus.NOT_FOUND, f"AMQP is at {PATH}\n")
        elif self._is_from_page(request):
            response = self._websocket.reject(HTTPStatus.FORBIDDEN, "web pages are not allowed\n")
        else:
            response = self._websocket.accept(request)  # this can also be an error response
        self._websocket.send_response(response)
        if self._websocket.state is OPEN:
            self.flush()
            self._inner = self._make()
            self._inner.connection_made(
                cast("asyncio.Transport", _WebSocketTransport(self._websocket, self.flush, self._transport))
            )

    def _is_from_page(self, request: Request) -> bool:
        """Whether a browser sends the request on behalf of a web page. If no key is set, such a page could read and
        publish events.

        The azure-eventhub client sends the server's name as its origin, and so does a page after DNS rebinding. TLS
        detects rebinding. Without TLS, only IPv4 addresses and names without a dot are accepted, because nobody can
        register those.
        """
        origins, server = request.headers.get_all("Origin"), "".join(request.headers.get_all("Host"))
        if not origins:
            return False
        name = server.rpartition(":")[0] or server
        own = "." not in name or re.fullmatch(r"[0-9.]+", name) or self._transport.get_extra_info("sslcontext")
        return any(origin.partition("://")[2] != server for origin in origins) or not own

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._websocket.fail(CloseCode.UNSUPPORTED_DATA, "AMQP is binary")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._inner.data_received(bytes(frame.data))

    def flush(self) -> None:
        """Write the pending bytes of the websocket to the socket."""
        for data in self._websocket.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
            else:  # the websocket is closed
                self._transport.close()


class _WebSocketTransport:
    """The transport of the AMQP protocol: writes messages, and delegates the rest to the socket's transport."""

    def __init__(self, websocket: ServerProtocol, flush: Callable[[], None], transport: asyncio.Transport) -> None:
        self._websocket = websocket
        self._flush = flush
        self._transport = transport

    def write(self, data: bytes | bytearray) -> None:
        if self._websocket.state is OPEN:
            for start in range(0, len(data), _SENT_BYTES):
                self._websocket.send_binary(bytes(data[start : start + _SENT_BYTES]))
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._websocket.state is OPEN:
            self._websocket.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
