"""The AMQP protocol of a connection, from the first byte on, without I/O and without a clock.

If a peer violates the protocol, only its own connection is closed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from spark_ehbalance.emulator.amqp import frames
from spark_ehbalance.emulator.amqp.errors import FRAMING_ERROR, NOT_ALLOWED, UNAUTHORIZED, AmqpError, DecodeError
from spark_ehbalance.emulator.amqp.frames import encode_frame, error_field
from spark_ehbalance.emulator.amqp.session import MAX_FRAME_SIZE, BaseConnection, Session, lowest_free

_CHANNEL_MAX = 4999  # the highest channel number, the same as Azure announces


class Connection(BaseConnection):
    """The server's end of one connection. Subclasses authorize the peer and send the bytes."""

    def __init__(self, container_id: str, idle_timeout: float) -> None:
        """The subclass enforces `idle_timeout`, in seconds. Like the service, this announces half of it to the peer."""
        super().__init__()
        self.opened = False
        self._container_id = container_id
        self._idle_timeout = idle_timeout
        self._sessions: dict[int, Session] = {}  # by the peer's channel
        self._received = bytearray()
        self._frame_type: int | None = None  # expected next; None: a header is expected
        self._sasl_done = self._open_sent = False

    @abstractmethod
    def on_open(self, heartbeat_interval: float | None) -> None:
        """Handle the peer's open, which requests a heartbeat every `heartbeat_interval` seconds, or none if that is
        None. Raises AmqpError to refuse the connection."""

    @abstractmethod
    def on_error(self, error: AmqpError) -> None:
        """Handle the error that closed the connection."""

    def receive_data(self, data: bytes) -> None:
        """Process bytes from the peer. An incomplete frame is kept for the next call. After the connection is closed,
        the bytes are ignored."""
        self._received += data
        try:
            while not self.closed and self._process_next():
                pass
        except AmqpError as error:
            self.close(error)

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection and its links, and send the reason. Idempotent."""
        if self.closed:
            return
        if self._sasl_done:
            self._send_open()
            if error is not None:
                for session in self.sessions():
                    session.close(error)
            self.write(encode_frame(0, frames.Close(error_field(error))))
        self.closed = True
        self._received.clear()
        for session in self.sessions():
            session.close()
        self._sessions.clear()
        if error is not None:
            self.on_error(error)

    def sessions(self) -> Collection[Session]:
        return self._sessions.values()

    def _process_next(self) -> bool:
        """Process the next header or frame. Returns False if it is still incomplete."""
        if self._frame_type is None:
            return self._on_header()
        frame = frames.decode_frame(self._received, MAX_FRAME_SIZE)
        if frame is None:
            return False
        if frame.frame_type != self._frame_type:
            raise AmqpError(NOT_ALLOWED, f"unexpected frame of type {frame.frame_type}")
        del self._received[: frame.size]
        if frame.frame_type == frames.SASL_FRAME:
            self._on_sasl(frame)
        elif frame.body:  # else it is a heartbeat
            self._on_frame(frame)
        return True

    def _on_header(self) -> bool:
        length = frames.HEADER_LENGTH
        if len(self._received) < length and frames.SASL_HEADER.startswith(self._received[:4]):
            return False
        header = bytes(self._received[:length])
        del self._received[:length]
        if header == frames.SASL_HEADER and not self._sasl_done:
            self._frame_type = frames.SASL_FRAME
            self.write(frames.SASL_HEADER + encode_frame(0, frames.SASL_MECHANISMS))
        elif header == frames.AMQP_HEADER:
            self._frame_type, self._sasl_done = frames.AMQP_FRAME, True
            self.write(frames.AMQP_HEADER)
        else:
            self.write(frames.SASL_HEADER)
            raise AmqpError(FRAMING_ERROR, f"{header!r} is not an AMQP 1.0 header")
        return True

    def _on_sasl(self, frame: frames.Frame) -> None:
        init, _ = frames.decode_performative(frame.body)
        if not isinstance(init, frames.SaslInit):
            raise DecodeError("the SASL frame is not sasl-init")
        # Links are authorized when they attach, not by SASL. PLAIN is offered as by the service, but rejected.
        passed = init.mechanism in ("MSSBCBS", "ANONYMOUS", "EXTERNAL")
        self.write(encode_frame(0, frames.SaslOutcome(0, b"Welcome!") if passed else frames.SaslOutcome(1)))
        if not passed:
            raise AmqpError(UNAUTHORIZED, "SASL authentication failed")
        self._frame_type, self._sasl_done = None, True

    def _on_frame(self, frame: frames.Frame) -> None:
        performative, payload = frames.decode_performative(frame.body)
        match performative:
            case frames.Close():
                self.close()
            case frames.Open():
                self._on_open(performative)
            case frames.SaslInit():
                raise DecodeError("the AMQP frame has a SASL performative")
            case _ if not self.opened:
                raise AmqpError(NOT_ALLOWED, "the first frame must be an open")
            case frames.Begin():
                self._on_begin(frame.channel, performative)
            case _:
                self._on_session_frame(frame.channel, performative, frame.body[payload:])

    def _on_open(self, peer: frames.Open) -> None:
        if self.opened:
            raise AmqpError(NOT_ALLOWED, "the connection is already open")
        self.opened = True
        self._send_open()
        if peer.max_frame_size is not None:  # the smaller limit applies to both directions
            self.max_frame_size = min(peer.max_frame_size, MAX_FRAME_SIZE)
        self.on_open(peer.idle_time_out / 2000 if peer.idle_time_out else None)

    def _send_open(self) -> None:
        if not self._open_sent:
            self._open_sent = True
            idle_ms = round(self._idle_timeout * 500)
            opened = frames.Open(self._container_id, None, MAX_FRAME_SIZE, _CHANNEL_MAX, idle_ms)
            self.write(encode_frame(0, opened))

    def _on_begin(self, channel: int, begin: frames.Begin) -> None:
        if channel > _CHANNEL_MAX or channel in self._sessions:
            raise AmqpError(NOT_ALLOWED, f"channel {channel} is in use or above {_CHANNEL_MAX}")
        number = lowest_free({session.number for session in self.sessions()})
        self._sessions[channel] = Session(self, number, begin, channel)

    def _on_session_frame(self, channel: int, performative: frames.Performative, payload: bytes) -> None:
        session = self._sessions.get(channel)
        if session is None:
            return  # the peer has ended the session
        if isinstance(performative, frames.End):
            self._sessions.pop(channel).close()
        else:
            session.receive(performative, payload)
