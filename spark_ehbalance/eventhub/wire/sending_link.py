"""A sending link with many messages in flight.

The client's own link encodes each frame twice and scans all pending messages at each acknowledgement. This work is most
of the cost of a small message. The link also exceeds the credit that the peer grants.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from spark_ehbalance.eventhub.wire.client import check_open, cut_off_at
from spark_ehbalance.eventhub.wire.encoder import EncodedBatch, transfer_frames
from spark_ehbalance.eventhub.wire.frames import FrameReader

_ID_MASK = 0xFFFFFFFF

#: Bytes per write. Acknowledgements are read after each write.
_WRITE_BYTES = 1 << 16


class Deadline:
    """Time limit for a peer that accepts nothing: `end` is `seconds` after the last accepted batch. An attempt ends
    after half of that time, which leaves time to try a new connection if the peer is silent."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.postpone()

    def postpone(self) -> None:
        """Restart the time limit."""
        self.end = time.monotonic() + self._seconds
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Restart the time limit of an attempt."""
        self.attempt_end = min(self.end, time.monotonic() + self._seconds / 2)

    def check(self) -> None:
        """Raise TimeoutError if the attempt has ended."""
        if time.monotonic() >= self.attempt_end:
            raise TimeoutError("The hub did not answer in time.")


class SendingLink:
    """An open sending link of the client's `handler`. For one thread."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._connection = handler, handler._connection
        self._session, self._link = handler._session, handler._link
        self._window: list[EncodedBatch] = []
        self._waiting: dict[int, EncodedBatch] = {}  # unacknowledged batches by delivery number
        self._deadline = Deadline(0.0)
        #: The client's errors for batches that the peer rejected in the last call of `send`.
        self.refusals: list[Exception] = []
        self._more_frames = 0  # sent frames minus sent batches
        self._handle_flow, self._session._incoming_flow = self._session._incoming_flow, self._flow
        self._send_flow, self._session._outgoing_flow = self._session._outgoing_flow, self._own_flow
        self._link._incoming_disposition = self._answered

    @property
    def unanswered(self) -> list[EncodedBatch]:
        """The batches of the last call of `send` without an acknowledgement."""
        return list(self._waiting.values())

    def send(self, window: list[EncodedBatch], deadline: Deadline) -> None:
        """Send the batches of a `window` (`encoder.windows`), and wait for all acknowledgements until the attempt of
        `deadline` ends. Each accepted batch postpones the deadline, and is removed from `window`. Raises TimeoutError
        or the client's error for the link, but not the errors in `refusals`."""
        self._window, self._waiting, self.refusals, self._deadline = window, {}, [], deadline
        frames, more, reader = self._frames(tuple(window)), True, self._connection._transport.frames
        with cut_off_at(lambda: deadline.attempt_end, lambda: self._connection), self._blocking_writes():
            while reader.has_frame():  # a batch sent on a link that the peer has already ended would count as resent
                self._connection.listen()
                self._check()
            while more or self._waiting:
                waits = True
                if (
                    more and not reader.broken and self._handler.client_ready()
                ):  # do not write while the token is being renewed
                    more, waits = self._write(frames)
                elif more and not self._waiting:
                    for link in self._session.links.values():
                        link.get_state()  # without the token's link, the client would never be ready
                if reader.has_frame(waits=waits) and not self._take_accepted(reader):
                    self._connection.listen()
                self._check()
                self._connection._get_remote_timeout(time.time())  # sends the heartbeat when it is due

    def _check(self) -> None:
        """Raise the error that ended the link; TimeoutError if the deadline cut off the connection."""
        if self._connection._error:
            self._deadline.check()
        check_open(self._connection, self._session, self._link)

    @contextlib.contextmanager
    def _blocking_writes(self) -> Iterator[None]:
        """Let only the deadline abort writes, including the client's own, because after an aborted write all
        unacknowledged batches would be sent again. Reads keep the socket's timeout, for heartbeats and token
        renewals."""
        transport = self._connection._transport
        sock = transport.sock
        timeout = transport.frames.wait = sock.gettimeout()
        sock.settimeout(None)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the socket may be closed
                sock.settimeout(timeout)

    def _frames(self, batches: Iterable[EncodedBatch]) -> Iterator[bytes]:
        """Yield the frames of batches; yield an empty one while the credit and the session's window do not allow the
        next frame."""
        session, link, largest = self._session, self._link, self._connection._remote_max_frame_size
        for batch in batches:
            while link.current_link_credit <= 0 or session.remote_incoming_window <= 0:
                yield b""
            number = session.next_outgoing_id
            self._waiting[number] = batch
            session.next_outgoing_id = (number + 1) & _ID_MASK
            link.delivery_count = (link.delivery_count + 1) & _ID_MASK
            link.current_link_credit -= 1
            self._more_frames -= 1
            for frame in transfer_frames(session.channel, link.handle, number, batch.payload, largest):
                while session.remote_incoming_window <= 0:
                    yield b""
                session.remote_incoming_window -= 1
                self._more_frames += 1
                yield frame

    def _write(self, frames: Iterator[bytes]) -> tuple[bool, bool]:
        """Send some of the allowed frames, not all, because on a slow connection acknowledgements arrive before all
        frames are written. Returns whether there are more frames, and whether the next one must wait for the peer."""
        data, frame = bytearray(), None
        while len(data) < _WRITE_BYTES and (frame := next(frames, None)):
            data += frame
        if data:
            self._connection._transport.write(data)
            self._connection._last_frame_sent_time = time.time()
        return frame is not None, not frame

    def _flow(self, fields: list[Any]) -> None:
        """Handle a flow. The client counts one frame per batch, but the peer counts all frames."""
        self._handle_flow(fields)
        self._session.remote_incoming_window -= self._more_frames

    def _own_flow(self, fields: dict[str, Any] | None = None) -> None:
        """Send a flow with the number of the next frame; the client would send the number of the next batch."""
        batches = self._session.next_outgoing_id
        self._session.next_outgoing_id = (batches + self._more_frames) & _ID_MASK
        try:
            self._send_flow(fields)
        finally:
            self._session.next_outgoing_id = batches

    def _take_accepted(self, reader: FrameReader) -> bool:
        """Handle received acknowledgements without the client: a hub usually sends one per batch, in its own frame.
        Returns whether there were any."""
        numbers = reader.take_accepted()
        for number in numbers:
            fields: list[Any] = [True, number, None, True, {"accepted": []}, None]
            if number in self._waiting:
                self._answered(fields)
            else:
                self._session._incoming_disposition(fields)  # of a token
        if numbers:
            self._connection._last_frame_received_time = time.time()
        return bool(numbers)

    def _answered(self, fields: list[Any]) -> None:
        """Handle a disposition in place of the client's link. The client also passes on dispositions of the peer's own
        deliveries, which are ignored."""
        by_receiver, first, last, settled, outcome, _ = fields
        if not (by_receiver and settled):
            return
        for number in range(first, (first if last is None else last) + 1):
            batch = self._waiting.pop(number, None)
            if batch is None:
                continue
            if "accepted" in (outcome or ()):
                self._window.remove(batch)
                self._deadline.postpone()
            else:
                self.refusals.append(_rejection(outcome or {}))


def _rejection(outcome: dict[str, list[Any]]) -> Exception:
    """The client's error for an outcome other than `accepted`."""
    from azure.eventhub._pyamqp.error import ErrorCondition, MessageException

    (error, *_) = outcome.get("rejected") or [None]
    condition, text, info = error or (None, None, None)
    return MessageException(condition or ErrorCondition.UnknownError, description=text, info=info)
