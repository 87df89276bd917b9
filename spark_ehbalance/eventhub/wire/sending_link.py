"""An open link of the client by which many messages are on their way at once.

The client encodes each frame twice and goes through all that is on its way at each answer, which is most of the cost of
a small message; and it sends more than the peer has granted credit for.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from spark_ehbalance.eventhub.wire.client import check_open, cut_off_after
from spark_ehbalance.eventhub.wire.outgoing import Batch, transfer

_ID_MASK = 0xFFFFFFFF

#: Bytes of one write: the client gives up one that is not done within its time limit for the socket.
_WRITE_BYTES = 1 << 16


class SendingLink:
    """The open sending link of the client's `handler`. For one thread."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._connection = handler, handler._connection
        self._session, self._link = handler._session, handler._link
        self._waiting: dict[int, Batch] = {}  # for an answer, by number of the delivery
        self._refused: list[Batch] = []
        self._problem: Exception | None = None
        self._link._incoming_disposition = self._answered
        self._link.update_pending_deliveries = lambda: None  # takes credit that the peer has not granted

    def send(self, window: list[Batch], timeout: float) -> None:
        """Send batches (`outgoing.windows`), and wait until the peer has answered to all, for at most `timeout` seconds
        from one answer to the next. Those that it has taken are removed from the list, also if this raises: the
        client's error for the link, or for the first batch that was refused."""
        unsent, left = deque(window), len(window)
        deadline = time.monotonic() + timeout
        try:
            while unsent or self._waiting:
                if unsent and self._handler.client_ready():  # not while the token is renewed
                    # the client itself waits without end for a peer that reads byte by byte
                    with cut_off_after(timeout, lambda: self._connection):
                        self._transfer(unsent)
                self._connection.listen(wait=self._handler._socket_timeout)
                check_open(self._connection, self._session, self._link)
                now = time.monotonic()
                if len(unsent) + len(self._waiting) < left:
                    left, deadline = len(unsent) + len(self._waiting), now + timeout
                elif now > deadline:
                    raise TimeoutError("Sending timed out.")
            if self._problem is not None:
                raise self._problem
        finally:
            window[:] = [*self._refused, *self._waiting.values(), *unsent]
            self._waiting, self._refused, self._problem = {}, [], None

    def _transfer(self, unsent: deque[Batch]) -> None:
        """Send as many as credit and window allow."""
        session, link = self._session, self._link
        data = bytearray()
        while unsent and link.current_link_credit > 0 and session.remote_incoming_window > 0:
            batch, number = unsent.popleft(), session.next_outgoing_id
            self._waiting[number] = batch
            largest = self._connection._remote_max_frame_size
            for frame in transfer(session.channel, link.handle, number, batch.payload, largest):
                data += frame
                session.remote_incoming_window -= 1
                if len(data) >= _WRITE_BYTES:
                    self._connection._transport.write(data)
                    data = bytearray()
            session.next_outgoing_id = (number + 1) & _ID_MASK
            link.delivery_count = (link.delivery_count + 1) & _ID_MASK
            link.current_link_credit -= 1
        if data:
            self._connection._transport.write(data)
        self._connection._last_frame_sent_time = time.time()

    def _answered(self, fields: list[Any]) -> None:
        """Take a disposition, in place of the client's link. The client passes on those of the peer's own deliveries
        too."""
        of_receiver, first, last, settled, outcome, _ = fields
        if not (of_receiver and settled):
            return
        for number in range(first, (first if last is None else last) + 1):
            batch = self._waiting.pop(number, None)
            if batch is None or "accepted" in (outcome or ()):
                continue
            self._refused.append(batch)
            self._problem = self._problem or _refusal(outcome or {})


def _refusal(outcome: dict[str, list[Any]]) -> Exception:
    """The client's error for an outcome other than that the peer has taken a batch."""
    from azure.eventhub._pyamqp.error import ErrorCondition, MessageException

    (error, *_) = outcome.get("rejected") or [None]
    condition, text, info = error or (None, None, None)
    return MessageException(condition or ErrorCondition.UnknownError, description=text, info=info)
