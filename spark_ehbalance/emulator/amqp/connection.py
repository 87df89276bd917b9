"""Connections: the protocol from the first byte on, one object per TCP connection.

Whatever a peer sends, the worst that happens is that its own connection is closed with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
import time
from typing import Protocol, cast

from .errors import CONNECTION_FORCED, INTERNAL_ERROR, NOT_ALLOWED, AmqpError, DecodeError
from .frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER_LENGTH,
    SASL_FRAME,
    SASL_HEADER,
    SASL_MECHANISMS,
    Attach,
    Begin,
    Close,
    Open,
    SaslInit,
    SaslOutcome,
    decode_header,
    decode_performative,
    encode_frame,
    error_field,
    usable_frame_size,
)
from .link import Link
from .session import Session

_log = logging.getLogger(__name__)

MAX_FRAME_SIZE = 65536  # what Azure announces; larger messages come in several frames
_LARGEST_OUTGOING_FRAME = 4 << 20  # no peer needs larger ones: events end at 1 MiB
_SASL_FRAME_SIZE = 512  # by the specification, until the opens have been exchanged
_CHANNEL_MAX = 255  # sessions per connection, far above what a client uses
_WRITE_BUFFER = 1 << 20  # bytes waiting for a slow reader before its links stop
_WRITE_LIMIT = 8 << 20  # bytes of answers waiting before nothing more is read from the peer either
_LINGER = 1.0  # seconds for the peer to read why it was closed
_MIN_IDLE_TIMEOUT_MS = 200  # below this, heartbeats would be all that happens
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing resets
_numbers = itertools.count(1)


class Container(Protocol):
    """The application behind the connections."""

    handshake_timeout: float
    idle_timeout: float

    def connected(self, connection: Connection) -> bool:
        """A peer has connected; false leaves it without any answer for ever."""

    def disconnected(self, connection: Connection) -> None:
        """A peer is gone."""

    def authenticate(self, connection: Connection, mechanism: str, response: bytes) -> bool:
        """Whether a peer may go on after SASL."""

    def create_link(self, session: Session, attach: Attach) -> Link:
        """Make and accept the link a peer asks for. Raises AmqpError to refuse it."""


class Connection(asyncio.Protocol):
    """One peer. `grants` belongs to the container: what the peer may use, and until when."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.number = next(_numbers)
        self.sessions: dict[int, Session] = {}
        self.peer_max_frame_size = _LARGEST_OUTGOING_FRAME
        self.grants: dict[str, float] = {}
        self.writable = True
        self._in = bytearray()
        self._step = self._on_header
        self._sasl_done = self._open_sent = self._opened = self._closed = self._silent = False
        self._last_heard = self._begun = time.monotonic()
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._silent = not self.container.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._heartbeat:
            self._heartbeat.cancel()
        self._end_sessions()
        self.container.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._closed or self._silent:
            return
        self._last_heard = time.monotonic()
        self._in += data
        try:
            while not self._closed and self._step():
                pass
        except AmqpError as error:
            self.close(error)
        except Exception:
            _log.exception("connection %d: internal error", self.number)
            self.close(AmqpError(INTERNAL_ERROR, "The emulator could not process the last frame."))
        if self._transport.get_write_buffer_size() > _WRITE_LIMIT:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if not self._closed:
            self._transport.resume_reading()
            for session in list(self.sessions.values()):
                session.resume()

    # --- what links, sessions and the container call

    def write(self, frames: bytes | bytearray) -> None:
        """Send encoded frames; nothing happens on a closed connection."""
        if not self._closed and not self._transport.is_closing():
            self._transport.write(frames)

    def drop(self) -> None:
        """Reset the TCP connection at once, without a word."""
        with contextlib.suppress(OSError):  # gone already
            socket_ = self._transport.get_extra_info("socket")
            if socket_ is not None:  # with TLS a connection that has ended has none
                socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def forget_session(self, session: Session) -> None:
        """A session has ended."""
        self.sessions.pop(session.channel, None)
        session.end()

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection and tell the peer why."""
        if self._closed:
            return
        if error:
            _log.warning("connection %d closed: %s", self.number, error)
        if self._sasl_done:
            self._send_open()
            self.write(encode_frame(0, Close(error_field(error))))
        self._closed = True
        self._in.clear()
        self._end_sessions()
        # what the peer still sends is read and thrown away for a while: a reset would overtake the reason
        with contextlib.suppress(OSError):  # the peer may be gone already
            if self._transport.can_write_eof():
                self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    def check_timeouts(self, now: float) -> None:
        """Drop a peer that has been silent for too long; `now` is on the monotonic clock."""
        if self._closed or self._silent:
            return
        if not self._opened and now - self._begun > self.container.handshake_timeout:
            _log.warning("connection %d closed: no open within %g s", self.number, self.container.handshake_timeout)
            self.drop()
        elif now - self._last_heard > self.container.idle_timeout:
            limit = round(self.container.idle_timeout * 1000)
            text = f"The connection was inactive for more than the allowed {limit} milliseconds and is closed."
            self.close(AmqpError(CONNECTION_FORCED, text))

    # --- the protocol, step by step; each step says whether there may be more to do

    def _take(self, count: int) -> bytes:
        taken = bytes(self._in[:count])
        del self._in[:count]
        return taken

    def _on_header(self) -> bool:
        if len(self._in) < HEADER_LENGTH and SASL_HEADER.startswith(self._in[:4]):
            return False
        header = self._take(HEADER_LENGTH)
        if header == SASL_HEADER and not self._sasl_done:
            self.write(SASL_HEADER + encode_frame(0, SASL_MECHANISMS))
            self._step = self._on_sasl
        elif header == AMQP_HEADER:
            # without SASL a peer is anonymous; what it may do is decided when it attaches
            self._sasl_done = True
            self.write(AMQP_HEADER)
            self._step = self._on_frame
        else:
            _log.warning("connection %d closed: %r is no AMQP 1.0 header", self.number, header)
            self.write(SASL_HEADER)
            self.close()
        return True

    def _on_sasl(self) -> bool:
        body = self._next_body(SASL_FRAME, _SASL_FRAME_SIZE)
        if body is None:
            return False
        init, _ = decode_performative(body[1])
        if not isinstance(init, SaslInit):
            raise DecodeError("a SASL frame that is not sasl-init")
        passed = self.container.authenticate(self, init.mechanism, init.initial_response or b"")
        self.write(encode_frame(0, SaslOutcome(0 if passed else 1)))
        if not passed:
            _log.warning("connection %d closed: SASL refused", self.number)
            self.close()
        self._step = self._on_header
        self._sasl_done = passed
        return True

    def _on_frame(self) -> bool:
        frame = self._next_body(0, MAX_FRAME_SIZE)
        if frame is None:
            return False
        channel, body = frame
        if not body:
            return True  # a heartbeat
        performative, payload = decode_performative(body)
        if isinstance(performative, Close):
            self.close()
        elif isinstance(performative, Open):
            self._on_open(performative)
        elif isinstance(performative, SaslInit):
            raise DecodeError("a SASL performative in an AMQP frame")
        elif not self._opened:
            raise AmqpError(NOT_ALLOWED, "the first frame must be an open")
        elif isinstance(performative, Begin):
            self._on_begin(channel, performative)
        elif channel in self.sessions:
            session = self.sessions[channel]
            try:
                session.on_frame(performative, body[payload:])
            except DecodeError:
                raise
            except AmqpError as error:
                _log.warning("connection %d: session %d ended: %s", self.number, channel, error)
                session.abort(error)
        # a frame for a session that this side has ended may still be on its way
        return True

    def _next_body(self, frame_type: int, max_frame_size: int) -> tuple[int, bytes] | None:
        if len(self._in) < HEADER_LENGTH:
            return None
        header = decode_header(self._in, 0, max_frame_size)
        if header.frame_type != frame_type:
            raise AmqpError(NOT_ALLOWED, f"a frame of type {header.frame_type} at this point")
        if len(self._in) < header.size:
            return None
        return header.channel, self._take(header.size)[header.body :]

    def _on_open(self, peer: Open) -> None:
        if self._opened:
            raise AmqpError(NOT_ALLOWED, "a second open")
        self._opened = True
        self._send_open()
        self.peer_max_frame_size = usable_frame_size(peer.max_frame_size, _LARGEST_OUTGOING_FRAME)
        if peer.idle_time_out:
            if peer.idle_time_out < _MIN_IDLE_TIMEOUT_MS:
                raise AmqpError(NOT_ALLOWED, f"an idle-time-out of less than {_MIN_IDLE_TIMEOUT_MS} ms")
            self._beat(peer.idle_time_out / 2000)

    def _send_open(self) -> None:
        if not self._open_sent:
            self._open_sent = True
            # half of what is really allowed, as the specification advises
            idle_ms = round(self.container.idle_timeout * 500)
            opened = Open("ehbalance-emulator", None, MAX_FRAME_SIZE, _CHANNEL_MAX, idle_ms)
            self.write(encode_frame(0, opened))

    def _beat(self, interval: float) -> None:
        if self.writable:  # else there is more than enough to be read
            self.write(EMPTY_FRAME)
        self._heartbeat = asyncio.get_running_loop().call_later(interval, self._beat, interval)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel > _CHANNEL_MAX or channel in self.sessions:
            raise AmqpError(NOT_ALLOWED, f"a begin on channel {channel}, which is in use or above {_CHANNEL_MAX}")
        self.sessions[channel] = Session(self, channel, begin)

    def _end_sessions(self) -> None:
        for session in list(self.sessions.values()):
            session.end()
        self.sessions.clear()
