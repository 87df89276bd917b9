"""Where the bytes of AMQP come from: a socket, a TLS socket, or the frames of a websocket, behind one interface.

The client has opened the connection, and still does the sending. Here everything that has come is read in large
pieces, straight into the reader's buffer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import Any, Protocol

from spark_ehbalance.hub.wire.values import MalformedError

#: The kinds of frames of a websocket.
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

#: The most bytes of a frame's head, without the mask that only a client's frames have.
_LONGEST_HEAD = 10

#: Seconds for one frame that is sent, such as the answer to a ping: as long as the client gives its own by default.
_SENDING = 1.0


class Source(Protocol):
    """A stream of bytes. What is raised by its methods ends the connection."""

    def read_into(self, buffer: memoryview, wait: float) -> int:
        """Read what has come, or comes within `wait` seconds, and return how many bytes are in `buffer` now; 0 if none
        came, or none of AMQP. Raises `OSError`, or `MalformedError`."""


def incompatible_transport(transport: Any) -> str | None:
    """Why the client's `transport` cannot be read here; None if it can."""
    kind, sock = type(transport).__name__, transport.sock
    if kind == "SASLTransport" and isinstance(sock, socket.socket):
        return None
    if kind == "SASLWithWebSocket":
        return _incompatible_websocket(sock)
    return f"it has a {kind}, and neither a socket nor a websocket"


def source_of(transport: Any) -> Source:
    """The source of the client's `transport`, which it does not read any more. `incompatible_transport` must have
    returned None."""
    sock = transport.sock
    return _SocketSource(sock) if isinstance(sock, socket.socket) else WebSocketSource(sock)


class _SocketSource:
    """A socket, or a TLS socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._records = isinstance(sock, ssl.SSLSocket)

    def read_into(self, buffer: memoryview, wait: float) -> int:
        have, sock = 0, self._socket
        before = sock.gettimeout()
        sock.settimeout(wait)
        try:
            while have < len(buffer):
                received = sock.recv_into(buffer[have:])
                if not received:
                    raise ConnectionError("the peer has closed the connection")
                have += received
                if not self._records:
                    break
                sock.settimeout(0)  # a TLS record has at most 16 KB: take all that have come
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            sock.settimeout(before)
        return have


class WebSocketSource:
    """The data of a websocket's frames, without the frames.

    Frames are taken apart where they were read: their data moves down over their heads.
    """

    def __init__(self, websocket: Any) -> None:
        """`websocket` is one of websocket-client, between two frames."""
        self._websocket = websocket
        self._below = _SocketSource(websocket.sock)
        self._head = b""  # the part of a frame's head that has come
        self._left = 0  # bytes of the present frame's data that have not come
        self._failure: Exception | None = None  # to be raised once the data before it was returned
        self._control: tuple[int, bytes] | None = None  # the kind of the present frame and its data, unless it is AMQP
        # The client's own would read up to the peer's answer, for seconds, and from the middle of a frame.
        websocket.close = self._close

    def read_into(self, buffer: memoryview, wait: float) -> int:
        if self._failure is not None:
            raise self._failure
        offset = len(self._head)
        received = self._below.read_into(buffer[offset:], wait)
        if not received:
            return 0
        buffer[:offset], self._head = self._head, b""
        return self._take_apart(buffer, offset + received)

    def _take_apart(self, buffer: memoryview, end: int) -> int:
        """Strip frame headers from the first `end` bytes of `buffer`, in place; returns the length of the payload."""
        pos = have = 0
        try:
            while pos < end:
                if not self._left:
                    head = bytes(buffer[pos : min(end, pos + _LONGEST_HEAD)])
                    if (size := _head_size(head)) > len(head):
                        self._head = head
                        break
                    self._begin(head)
                    pos += size
                taken = min(self._left, end - pos)
                self._left -= taken
                if self._control is None:
                    buffer[have : have + taken] = buffer[pos : pos + taken]
                    have += taken
                else:
                    self._continue_control(bytes(buffer[pos : pos + taken]))
                pos += taken
        except (OSError, MalformedError) as error:
            if not have:
                raise
            self._failure = error
        return have

    def _begin(self, head: bytes) -> None:
        """A frame begins with this head, and perhaps more."""
        kind, self._left = head[0] & 0x0F, head[1] & 0x7F
        if self._left >= 126:
            (self._left,) = struct.unpack_from(">H" if self._left == 126 else ">Q", head, 2)
        if head[0] & 0x70 or head[1] & 0x80:
            raise MalformedError("a websocket's frame with an extension or a mask, which a server must not send")
        self._control = None if kind in (_BINARY, _CONTINUED) else (kind, b"")
        if kind in (_CLOSE, _PING, _PONG):
            if self._left > 125:
                raise MalformedError(f"a websocket's control frame of {self._left} bytes")
            if not self._left:
                self._answer()  # nothing else of it comes
        elif kind not in (_BINARY, _CONTINUED):
            raise MalformedError(f"a websocket's frame of kind {kind}, which is not AMQP's")

    def _continue_control(self, data: bytes) -> None:
        assert self._control is not None
        kind, before = self._control
        self._control = kind, before + data
        if not self._left:
            self._answer()

    def _answer(self) -> None:
        """A control frame has come: a ping is answered, and a close."""
        assert self._control is not None
        (kind, data), self._control = self._control, None
        if kind == _PING:
            self._send(self._websocket.pong, data)
        elif kind == _CLOSE:
            with contextlib.suppress(Exception):  # it may be gone
                self._send(self._websocket.send_close)
            code = struct.unpack(">H", data[:2])[0] if len(data) >= 2 else "none"
            raise ConnectionError(f"the peer has closed the websocket with code {code}")

    def _send(self, send: Any, *arguments: Any) -> None:
        sock = self._websocket.sock
        before = sock.gettimeout()
        sock.settimeout(_SENDING)
        try:
            send(*arguments)
        finally:
            sock.settimeout(before)

    def _close(self, *_: Any, **__: Any) -> None:
        """Say that the websocket ends, and close the socket."""
        if self._websocket.connected:
            with contextlib.suppress(Exception):  # it may be gone
                self._send(self._websocket.send_close)
        sock = self._websocket.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._websocket.shutdown()


def _head_size(head: bytes) -> int:
    """The size of the frame header that begins with `head`; `len(head) + 1` while too little has come."""
    if len(head) < 2:
        return len(head) + 1
    return 2 + {126: 2, 127: 8}.get(head[1] & 0x7F, 0)


def _incompatible_websocket(websocket: Any) -> str | None:
    try:
        parts = websocket.frame_buffer, websocket.cont_frame
        if not isinstance(websocket.sock, socket.socket) or not websocket.connected:
            return "its websocket has no socket"
        if not all(callable(getattr(websocket, name)) for name in ("pong", "send_close", "shutdown", "close")):
            return "its websocket is not as expected"
        if any(parts[0].recv_buffer) or parts[0].header is not None or parts[1].cont_data is not None:
            return "its websocket is in the middle of a frame"
    except AttributeError as error:
        return f"its websocket is not as expected: {error}"
    return None
