"""Reads AMQP bytes from a socket, a TLS socket or a websocket, in large pieces into the reader's buffer.

Sending is left to the client.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import Any, Protocol

from spark_ehbalance.eventhub.wire.values import MalformedError

#: The opcodes of a websocket's frames.
_CONTINUED, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA

#: Maximum size in bytes of a control frame without a mask; the headers of other frames are smaller.
_MAX_HEADER_BYTES = 2 + 125

#: Time limit for sending a frame, such as a pong, in seconds: the client's default.
_SEND_TIMEOUT = 1.0


class Source(Protocol):
    """A stream of bytes. An error ends the connection."""

    def read_into(self, buffer: memoryview, wait: float | None) -> int:
        """Read available bytes, or else bytes that arrive within `wait` seconds (None: no limit), into `buffer`.
        Returns the number of AMQP bytes, which is 0 if nothing or only websocket overhead arrived. Raises `OSError` or
        `MalformedError`."""


def incompatible_transport(transport: Any) -> str | None:
    """The reason why the client's `transport` is not supported; None if it is supported. Call it within
    `client.private_calls`."""
    kind, sock = type(transport).__name__, transport.sock
    if kind == "SASLWithWebSocket" or (kind == "SASLTransport" and isinstance(sock, socket.socket)):
        return None
    return f"its transport is a {kind}, neither a socket nor a websocket"


def source_of(transport: Any) -> Source:
    """A source that reads from the client's open `transport`, which must no longer read itself."""
    sock = transport.sock
    return _SocketSource(sock) if isinstance(sock, socket.socket) else WebSocketSource(sock)


class _SocketSource:
    """A socket, or a TLS socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._records = isinstance(sock, ssl.SSLSocket)

    def read_into(self, buffer: memoryview, wait: float | None) -> int:
        have, sock = 0, self._socket
        before = sock.gettimeout()
        sock.settimeout(wait)
        try:
            while have < len(buffer):
                received = sock.recv_into(buffer[have:])
                if not received:
                    raise ConnectionError("the peer closed the connection")
                have += received
                if not self._records:
                    break
                sock.settimeout(0)  # a TLS record contains at most 16 KB, so all available records are read
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            if not have:  # otherwise, the next read raises an error
                raise
        finally:
            sock.settimeout(before)
        return have


class WebSocketSource:
    """The payload of a websocket's frames, moved over their headers in place.

    Buffers must have room for more than one frame header.
    """

    def __init__(self, websocket: Any) -> None:
        """`websocket` is a WebSocket of websocket-client that is not in the middle of a frame."""
        self._websocket = websocket
        self._below = _SocketSource(websocket.sock)
        self._head = b""  # an incomplete header
        self._left = 0  # number of bytes of the current frame's payload that have not arrived
        self._failure: Exception | None = None  # raised after the previous data was returned
        # The library's own `close` would wait seconds for the peer's answer, and start reading in the middle of a
        # frame.
        websocket.close = self._close

    def read_into(self, buffer: memoryview, wait: float | None) -> int:
        if self._failure is not None:
            raise self._failure
        offset = len(self._head)
        received = self._below.read_into(buffer[offset:], wait)
        if not received:
            return 0
        buffer[:offset], self._head = self._head, b""
        return self._unwrap(buffer, offset + received)

    def _unwrap(self, buffer: memoryview, end: int) -> int:
        """Strip frame headers from the first `end` bytes of `buffer` in place. Returns the length of the payload."""
        pos = have = 0
        try:
            while pos < end:
                if not self._left:
                    head = bytes(buffer[pos : min(end, pos + _MAX_HEADER_BYTES)])
                    if (size := self._begin(head)) is None:
                        self._head = head
                        break
                    pos += size
                taken = min(self._left, end - pos)
                buffer[have : have + taken] = buffer[pos : pos + taken]
                self._left -= taken
                have += taken
                pos += taken
        except (OSError, MalformedError) as error:
            if not have:
                raise
            self._failure = error
        return have

    def _begin(self, head: bytes) -> int | None:
        """The size of the frame header at the start of `head`, or of a whole control frame, which is also answered;
        None while the header or control frame is incomplete."""
        if len(head) < 2:
            return None
        kind, length = head[0] & 0x0F, head[1] & 0x7F
        if head[0] & 0x70 or head[1] & 0x80:
            raise MalformedError("a websocket frame with an extension or a mask, which servers must not send")
        if kind in (_BINARY, _CONTINUED):
            size = 2 + {126: 2, 127: 8}.get(length, 0)
            if size > len(head):
                return None
            self._left = length if size == 2 else int.from_bytes(head[2:size], "big")
            return size
        if kind not in (_CLOSE, _PING, _PONG):
            raise MalformedError(f"a websocket frame of kind {kind}, which AMQP does not use")
        if length > 125:
            raise MalformedError(f"a websocket control frame of {length} bytes")
        size = 2 + length
        if size > len(head):
            return None
        if kind == _PING:
            self._send(self._websocket.pong, head[2:size])
        elif kind == _CLOSE:
            with contextlib.suppress(Exception):  # it may be closed
                self._send(self._websocket.send_close)
            code = struct.unpack_from(">H", head, 2)[0] if length >= 2 else "none"
            raise ConnectionError(f"the peer closed the websocket with code {code}")
        return size

    def _send(self, send: Any, *arguments: Any) -> None:
        sock = self._websocket.sock
        before = sock.gettimeout()
        sock.settimeout(_SEND_TIMEOUT)
        try:
            send(*arguments)
        finally:
            sock.settimeout(before)

    def _close(self, *_: Any, **__: Any) -> None:
        """Send a close frame, and close the socket."""
        if self._websocket.connected:
            with contextlib.suppress(Exception):  # it may be closed
                self._send(self._websocket.send_close)
        sock = self._websocket.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._websocket.shutdown()
