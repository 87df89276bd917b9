"""An open link of the client by which many messages are on their way at once.

The client encodes each frame twice and goes through all that is on its way at each answer, which is most of the cost of
a small message; and it sends more than the peer has granted credit for.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from spark_ehbalance.eventhub.wire.client import check_open, cut_off_at
from spark_ehbalance.eventhub.wire.outgoing import Batch, transfer

_ID_MASK = 0xFFFFFFFF

#: Bytes of one write: the client gives up one that is not done within its time limit for the socket.
_WRITE_BYTES = 1 << 16


class SendingLink:
    """The open sending link of the client's `handler`. For one thread."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._connection = handler, handler._connection
        self._session, self._link = handler._session, handler._link
        self._window: list[Batch] = []
        self._waiting: dict[int, Batch] = {}  # for an answer, by number of the delivery
        self._timeout = self._deadline = 0.0
        #: The client's errors for batches that the peer refused in the last call of `send`.
        self.refusals: list[Exception] = []
        self._more_frames = 0  # sent than batches
        self._flow_of_client, self._session._incoming_flow = self._session._incoming_flow, self._flow
        self._link._incoming_disposition = self._answered

    @property
    def unanswered(self) -> int:
        """The number of batches of the last call of `send` that the peer may have without having answered."""
        return len(self._waiting)

    def send(self, window: list[Batch], timeout: float) -> None:
        """Send batches (`outgoing.windows`), and wait until the peer has answered to all, for at most `timeout` seconds
        from one answer to the next. Those that it has taken are removed from the list. Raises TimeoutError or the
        client's error for the link, but not `refusals`."""
        self._window, self._waiting, self.refusals = window, {}, []
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        frames, more = self._frames(tuple(window)), True
        # the client itself waits without end for a peer that reads byte by byte
        with cut_off_at(lambda: self._deadline, lambda: self._connection):
            while more or self._waiting:
                waits = True
                if more and self._handler.client_ready():  # not while the token is renewed
                    more, waits = self._write(frames)
                if waits or self._has_come():
                    self._connection.listen(wait=self._handler._socket_timeout)
                if time.monotonic() > self._deadline:
                    raise TimeoutError("Sending timed out.")
                check_open(self._connection, self._session, self._link)

    def _frames(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        """The frames of batches; an empty one whenever credit and window do not allow the next."""
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
            for frame in transfer(session.channel, link.handle, number, batch.payload, largest):
                while session.remote_incoming_window <= 0:
                    yield b""
                session.remote_incoming_window -= 1
                self._more_frames += 1
                yield frame

    def _write(self, frames: Iterator[bytes]) -> tuple[bool, bool]:
        """Send some of the frames that are allowed now: on a slow connection answers come before all are written.
        Returns whether there are more, and whether to wait for the peer before the next."""
        data, frame = bytearray(), None
        while len(data) < _WRITE_BYTES and (frame := next(frames, None)):
            data += frame
        if data:
            try:
                self._connection._transport.write(data)
            except OSError:
                self._raise_reason()
            self._connection._last_frame_sent_time = time.time()
        return frame is not None, not frame

    def _raise_reason(self) -> NoReturn:
        """Read what the peer had sent before the connection broke: answers, and perhaps why it has closed it."""
        self._connection._transport.write = lambda _: None  # of the client, whose error would hide the peer's
        while True:
            self._connection.listen()
            check_open(self._connection, self._session, self._link)

    def _has_come(self) -> bool:
        """Whether something can be read at once."""
        sock = self._connection._transport.sock
        with selectors.DefaultSelector() as selector:  # `select` refuses file descriptors from 1024 on
            selector.register(getattr(sock, "sock", sock), selectors.EVENT_READ)  # a websocket has one below
            return bool(selector.select(0))

    def _flow(self, fields: list[Any]) -> None:
        """Take a flow. The client counts one frame for each batch, the peer all of them."""
        self._flow_of_client(fields)
        self._session.remote_incoming_window -= self._more_frames

    def _answered(self, fields: list[Any]) -> None:
        """Take a disposition, in place of the client's link. The client passes on those of the peer's own deliveries
        too."""
        of_receiver, first, last, settled, outcome, _ = fields
        if not (of_receiver and settled):
            return
        for number in range(first, (first if last is None else last) + 1):
            batch = self._waiting.pop(number, None)
            if batch is None:
                continue
            self._deadline = time.monotonic() + self._timeout
            if "accepted" in (outcome or ()):
                self._window.remove(batch)
            else:
                self.refusals.append(_refusal(outcome or {}))


def _refusal(outcome: dict[str, list[Any]]) -> Exception:
    """The client's error for an outcome other than that the peer has taken a batch."""
    from azure.eventhub._pyamqp.error import ErrorCondition, MessageException

    (error, *_) = outcome.get("rejected") or [None]
    condition, text, info = error or (None, None, None)
    return MessageException(condition or ErrorCondition.UnknownError, description=text, info=info)
