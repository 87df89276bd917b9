"""Connections: the protocol from the first byte on, without I/O and without a clock.

Whatever a peer sends, the worst that happens is that its own connection is closed with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .channel import Channel, Output
from .errors import FRAMING_ERROR, NOT_ALLOWED, AmqpError, DecodeError
from .events import AuthenticationRequested, ConnectionClosed, ConnectionOpened, Event
from .frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER_LENGTH,
    SASL_FRAME,
    SASL_HEADER,
    SASL_MECHANISMS,
    Begin,
    Close,
    End,
    Open,
    Performative,
    SaslInit,
    SaslOutcome,
    decode_header,
    decode_performative,
    encode_frame,
    error_field,
    usable_frame_size,
)
from .session import Session

MAX_FRAME_SIZE = 65536  # bytes, as Azure announces; larger messages come in several frames
_SASL_FRAME_SIZE = 512  # bytes; by the specification, until the opens have been exchanged
_CHANNEL_MAX = 4999  # the highest channel of a session, as Azure announces
_MIN_IDLE_TIMEOUT_MS = 200  # a shorter one would cost more heartbeats than anything else


class Connection:
    """The server's end of one connection."""

    def __init__(self, container_id: str, idle_timeout: float) -> None:
        """`idle_timeout` in seconds is announced to the peer; the caller enforces it."""
        self.opened = False
        self.closed = False
        self._container_id = container_id
        self._idle_timeout = idle_timeout
        self._sessions: dict[int, Session] = {}
        self._received = bytearray()
        self._output = Output()
        self._step: Callable[[], list[Event] | None] = self._on_header
        self._sasl_done = self._open_sent = False

    @property
    def max_frame_size(self) -> int:
        """The size in bytes of the largest frame that the peer takes."""
        return self._output.max_frame_size

    def receive_data(self, data: bytes) -> Iterator[Event]:
        """Decode the peer's bytes and yield their events.

        Handle each event before asking for the next: frames are decoded one at a time, so that a frame finds what the
        answer to the one before has changed. An incomplete frame is kept until the next call. After an error of the
        peer the last event is `ConnectionClosed`; bytes on a closed connection are ignored.
        """
        self._received += data
        try:
            while not self.closed and (events := self._step()) is not None:
                yield from events
        except AmqpError as error:
            self.close(error)
            yield ConnectionClosed(error)

    def data_to_send(self) -> bytes | bytearray:
        """All bytes that are to be sent since the last call."""
        return self._output.take()

    def authenticate(self, passed: bool) -> None:
        """Answer `AuthenticationRequested`. A refusal closes the connection."""
        self._output.write(encode_frame(0, SaslOutcome(0 if passed else 1)))
        self._sasl_done = passed
        self._step = self._on_header
        if not passed:
            self.close()

    def send_heartbeat(self) -> None:
        """Send an empty frame."""
        self._output.write(EMPTY_FRAME)

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection and send the peer the reason; ignored if it is closed. No event follows."""
        if self.closed:
            return
        if self._sasl_done:
            self._send_open()
            self._output.write(encode_frame(0, Close(error_field(error))))
        self.closed = True
        self._output.close()
        self._received.clear()
        self._sessions.clear()

    # --- the steps of the protocol; each returns its events, or None if it needs more bytes

    def _on_header(self) -> list[Event] | None:
        if len(self._received) < HEADER_LENGTH and SASL_HEADER.startswith(self._received[:4]):
            return None
        header = self._take(0, HEADER_LENGTH)
        if header == SASL_HEADER and not self._sasl_done:
            self._output.write(SASL_HEADER + encode_frame(0, SASL_MECHANISMS))
            self._step = self._on_sasl
        elif header == AMQP_HEADER:
            # without SASL a peer is anonymous; attaching a link decides what it may do
            self._sasl_done = True
            self._output.write(AMQP_HEADER)
            self._step = self._on_frame
        else:
            self._output.write(SASL_HEADER)
            raise AmqpError(FRAMING_ERROR, f"{header!r} is not an AMQP 1.0 header")
        return []

    def _on_sasl(self) -> list[Event] | None:
        frame = self._take_frame(SASL_FRAME, _SASL_FRAME_SIZE)
        if frame is None:
            return None
        init, _ = decode_performative(frame[1])
        if not isinstance(init, SaslInit):
            raise DecodeError("a SASL frame that is not sasl-init")
        self._step = lambda: None  # until `authenticate`
        return [AuthenticationRequested(init.mechanism, init.initial_response or b"")]

    def _on_frame(self) -> list[Event] | None:
        frame = self._take_frame(AMQP_FRAME, MAX_FRAME_SIZE)
        if frame is None:
            return None
        channel, body = frame
        if not body:
            return []  # a heartbeat
        performative, payload = decode_performative(body)
        if isinstance(performative, Close):
            self.close()
            return [ConnectionClosed(None)]
        if isinstance(performative, Open):
            return self._on_open(performative)
        if isinstance(performative, SaslInit):
            raise DecodeError("a SASL performative in an AMQP frame")
        if not self.opened:
            raise AmqpError(NOT_ALLOWED, "the first frame must be an open")
        if isinstance(performative, Begin):
            return self._on_begin(channel, performative)
        return self._on_session_frame(channel, performative, body[payload:])

    def _on_open(self, peer: Open) -> list[Event]:
        if self.opened:
            raise AmqpError(NOT_ALLOWED, "a second open")
        self.opened = True
        self._send_open()
        # the smaller of the two limits holds for both directions
        self._output.max_frame_size = usable_frame_size(peer.max_frame_size, MAX_FRAME_SIZE)
        if not peer.idle_time_out:
            return [ConnectionOpened(None)]
        if peer.idle_time_out < _MIN_IDLE_TIMEOUT_MS:
            raise AmqpError(NOT_ALLOWED, f"an idle-time-out of less than {_MIN_IDLE_TIMEOUT_MS} ms")
        return [ConnectionOpened(peer.idle_time_out / 2000)]

    def _send_open(self) -> None:
        if not self._open_sent:
            self._open_sent = True
            idle_ms = round(self._idle_timeout * 1000)
            self._output.write(encode_frame(0, Open(self._container_id, None, MAX_FRAME_SIZE, _CHANNEL_MAX, idle_ms)))

    def _on_begin(self, channel: int, begin: Begin) -> list[Event]:
        if channel > _CHANNEL_MAX or channel in self._sessions:
            raise AmqpError(NOT_ALLOWED, f"a begin on channel {channel}, which is in use or above {_CHANNEL_MAX}")
        self._sessions[channel] = Session(Channel(self._output, channel, begin))
        return []

    def _on_session_frame(self, channel: int, performative: Performative, payload: bytes) -> list[Event]:
        session = self._sessions.get(channel)
        if session is None:
            return []  # this side has ended the session, and the peer does not know it yet
        if isinstance(performative, End):
            return self._sessions.pop(channel).end()
        try:
            return session.receive(performative, payload)
        except DecodeError:
            raise
        except AmqpError as error:
            return self._sessions.pop(channel).end(error)

    # --- the received bytes

    def _take(self, start: int, end: int) -> bytes:
        """Remove the bytes up to `end`; return those from `start` on."""
        with memoryview(self._received) as view:
            taken = bytes(view[start:end])
        del self._received[:end]
        return taken

    def _take_frame(self, frame_type: int, max_frame_size: int) -> tuple[int, bytes] | None:
        """Channel and body of the next frame; None if it is incomplete."""
        if len(self._received) < HEADER_LENGTH:
            return None
        header = decode_header(self._received, 0, max_frame_size)
        if header.frame_type != frame_type:
            raise AmqpError(NOT_ALLOWED, f"a frame of type {header.frame_type} at this point")
        if len(self._received) < header.size:
            return None
        return header.channel, self._take(header.body, header.size)
