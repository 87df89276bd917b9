"""Reads a link's transfers from the socket in place of the client, which opened the connection and the link.

The client still handles other frames, and still sends.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from spark_ehbalance.eventhub.wire.client import check_open
from spark_ehbalance.eventhub.wire.frames import decoded
from spark_ehbalance.eventhub.wire.transfers import SLACK, RawMessages, Transfers
from spark_ehbalance.eventhub.wire.values import MalformedError

#: Bytes of frames after which a batch is complete.
MAX_BYTES = 4 << 20

#: Bytes requested by one read: at least the maximum frame size.
_READ_BYTES = 1 << 20

#: Size of an idle link's buffer in bytes. It is small because a worker keeps hundreds of receivers.
_IDLE_BYTES = 1 << 16

#: Unused large buffers, for the next link that needs one, and their maximum number.
_SPARE: list[bytearray] = []
_MAX_SPARE = 4

#: Seconds to wait for more events: longer than the usual gap between two reads while events are streaming in.
_MAX_PAUSE = 0.02

#: Seconds between two runs of the client's periodic work: heartbeats, token renewal.
_HOUSEKEEPING = 0.25

_ID_MASK = 0xFFFFFFFF

#: First bytes of a flow frame's body.
_FLOW = b"\x00\x53\x13"


class LinkReader:
    """Reads the transfers to the client's `link`, which `handler` opened. Call `client.check_usable` first.

    `prefetch` is the maximum credit beyond the messages of the current call. Methods raise the client's errors, OSError
    or `MalformedError`; the connection is unusable afterwards.
    """

    def __init__(self, handler: Any, link: Any, prefetch: int) -> None:
        self._token = handler._cbs_authenticator
        self._connection, self._session, self._link = handler._connection, handler._session, link
        self._transport = self._connection._transport
        self._source, half_read = self._transport.frames.takeover_state()
        self._prefetch = prefetch
        self._most = 0  # maximum number of messages of the current call
        self._wanted = 0  # number of messages for this call and later ones, which limits the credit
        channel = next(key for key, value in self._connection._incoming_endpoints.items() if value is self._session)
        self._transfers = Transfers(channel, self._link.remote_handle, self._connection._max_frame_size)
        self._data = bytearray(half_read) + bytearray(_IDLE_BYTES + SLACK)
        self._have = len(half_read)  # bytes in the buffer
        self._searched = 0  # position of the first incomplete frame
        self._returned = 0  # number of messages that `receive` returned
        self._failure: Exception | None = None  # raised after all earlier messages were returned
        self._housekeeping = 0.0
        self._answered = False  # a flow frame arrived

    def receive(self, most: int, wait: float, wanted: int | None = None) -> RawMessages:
        """Like `Receiver.receive`, but returns messages, which are valid until `release`."""
        transfers = self._transfers
        if self._returned == len(transfers):
            self._most, self._wanted = most, sys.maxsize if wanted is None else wanted
            if self._failure is not None:
                raise self._failure
            try:
                self._fill(most, time.monotonic() + wait)
            except Exception as error:
                if not len(transfers):
                    raise
                self._failure = error
        first, self._returned = self._returned, min(self._returned + most, len(transfers))
        return transfers.messages(self._data, first, self._returned)

    def confirm(self, wait: float) -> None:
        """Request a flow frame, and wait up to `wait` seconds for it. A peer that refuses the link does so before it
        answers, and then this raises the same errors as `receive`. Grants no credit."""
        self._wanted, self._answered = 0, False
        self._link.flow(link_credit=0, echo=True)
        self.read_until(lambda: self._answered, wait)

    def read_until(self, done: Callable[[], bool], wait: float) -> None:
        """Handle incoming frames until `done` returns True, for at most `wait` seconds.

        Raises `MalformedError` if messages of more than `MAX_BYTES` arrive.
        """
        deadline = time.monotonic() + wait
        self._find()  # frames may have arrived together with the last one that the client read
        while not done() and (left := deadline - time.monotonic()) > 0:
            if self._returned == len(self._transfers):
                self._clear()
                self._compact()
            elif self._have >= MAX_BYTES:
                raise MalformedError(f"unrequested messages of more than {MAX_BYTES} bytes")
            self._read(left)
            self._find()

    def release(self) -> None:
        """Invalidate the received messages, so that other links can use a large buffer."""
        rest = self._have - self._searched
        if self._returned == len(self._transfers) and len(self._data) > 2 * _IDLE_BYTES and rest <= _IDLE_BYTES:
            large, self._data = self._data, bytearray(_IDLE_BYTES + SLACK)
            self._data[:rest] = large[self._searched : self._have]
            self._have, self._searched = rest, 0
            if len(_SPARE) < _MAX_SPARE:
                _SPARE.append(large)

    def is_usable(self) -> bool:
        """Whether `receive` can still be called later: the token does not expire soon, and the small buffer has room.

        Handles the frames that have arrived, and raises the same errors as `receive`.
        """
        if time.time() >= self._token._expires_on - self._token._refresh_window:
            return False
        self._wanted = 0
        if self._returned == len(self._transfers):
            self._clear()
            self._compact()
        while room := len(self._data) - SLACK - self._have > _IDLE_BYTES // 2:
            if not self._read(0):
                break
            self._find()
        self._check()
        return room

    def close(self) -> None:
        """Close the socket, because the client leaves it open when the connection is broken."""
        with contextlib.suppress(Exception):
            self._transport.close()

    def _fill(self, most: int, deadline: float) -> None:
        """Find `most` new messages, or a few more if they arrived together; fewer if the stream pauses."""
        transfers = self._transfers
        self._clear()
        while True:
            self._find()
            now = time.monotonic()
            if now >= self._housekeeping:
                self._housekeeping = now + _HOUSEKEEPING
                self._keep_house()
            if not len(transfers):
                self._compact()
            elif len(transfers) >= most or self._have >= MAX_BYTES:
                return
            pause = min(deadline - now, _MAX_PAUSE if len(transfers) else _HOUSEKEEPING)
            if pause <= 0 or (not self._read(pause) and len(transfers)):
                return

    def _clear(self) -> None:
        self._transfers.clear()
        self._returned = 0

    def _find(self) -> None:
        self._searched = self._transfers.find(self._data, self._searched, self._have, self._other_frame)
        self._count()
        session, link = self._session, self._link
        window, credit = session.target_incoming_window, link.current_link_credit
        # Grant credit for the whole batch: with less, a stream would wait for a round trip after each part.
        found = len(self._transfers)
        full = max(self._most - found, 0) + self._prefetch
        credit_wanted = max(credit, min(full, self._wanted - found))
        if (credit <= full // 2 and credit < credit_wanted) or session.incoming_window <= window // 2:
            session.incoming_window = window
            link.flow(link_credit=credit_wanted)  # one frame renews both the credit and the window
            self._check()

    def _count(self) -> None:
        frames, deliveries = self._transfers.take_counts()
        session, link = self._session, self._link
        session.next_incoming_id = (session.next_incoming_id + frames) & _ID_MASK
        session.incoming_window -= frames
        session.remote_outgoing_window -= frames
        link.delivery_count = (link.delivery_count + deliveries) & _ID_MASK
        link.current_link_credit -= deliveries

    def _other_frame(self, channel: int, frame: bytes) -> None:
        self._count()  # done first, because a flow frame updates the same counters
        body = 4 * frame[4]
        self._answered = self._answered or frame[body : body + 3] == _FLOW
        self._connection._process_incoming_frame(channel, decoded(frame))
        self._check()

    def _check(self) -> None:
        check_open(self._connection, self._session, self._link)

    def _keep_house(self) -> None:
        self._connection._get_remote_timeout(time.time())  # sends the heartbeat when it is due
        self._token.handle_token()
        self._check()

    def _compact(self) -> None:
        """Move the incomplete frame to the beginning of the buffer."""
        rest = self._data[self._searched : self._have]
        self._data[: len(rest)] = rest
        self._have, self._searched = len(rest), 0

    def _read(self, pause: float) -> bool:
        """Read available data, or else data that arrives within `pause` seconds. Returns whether there was any."""
        if len(self._data) - SLACK - self._have < _IDLE_BYTES // 2:
            try:
                large = _SPARE.pop()  # if several threads get here, only one gets the last buffer
            except IndexError:
                large = bytearray(MAX_BYTES + _READ_BYTES + SLACK)
            large[: self._have] = self._data[: self._have]
            self._data = large
        with memoryview(self._data) as view:
            end = min(len(view) - SLACK, self._have + _READ_BYTES)
            received = self._source.read_into(view[self._have : end], pause)
        self._have += received
        if received:
            self._connection._last_frame_received_time = time.time()
        return bool(received)
