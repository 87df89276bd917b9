"""The hot loop's hold on the client: it reads from the client's socket in its place.

The client has opened and authenticated the connection and attached the link. Whatever comes that is no transfer to the
link goes to the client's own handlers, and it is the client that sends; only the reading is ours. That takes many
attributes of the client that are not public, so `incompatibility` says whether it is the client that this was made for.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from typing import Any

import azure.eventhub

from spark_ehbalance.hub.wire.transfers import SLACK, Transfers
from spark_ehbalance.hub.wire.values import MALFORMED, MalformedError, decode

#: Versions of azure-eventhub with which the tests of this package have passed.
TESTED = ("5.15.1",)

#: Bytes of frames after which a batch is complete.
MOST_BYTES = 4 << 20

#: Bytes asked for in one read, at least as many as the largest frame has.
_READ_BYTES = 1 << 20

#: Bytes that the buffer of a link has room for as long as little comes: receivers are kept by the hundred.
_IDLE_BYTES = 1 << 16

#: Buffers with room for a batch that no link is using, for whichever needs one next; and how many are kept.
_SPARE: list[bytearray] = []
_MOST_SPARE = 4

#: Seconds to wait for more once there are events: the next read is under way, or there is a pause.
_PAUSE = 0.02

#: Seconds between two looks at what the client has to do: heartbeats, a new token.
_HOUSEKEEPING = 0.25

_ID_MASK = 0xFFFFFFFF

#: What is used of the client, by the object that has it.
_USED = {
    "handler": "_connection _session _cbs_authenticator _keep_alive_thread",
    "connection": "_transport _incoming_endpoints _process_incoming_frame _get_remote_timeout _max_frame_size "
    "_last_frame_received_time _error state",
    "session": "next_incoming_id incoming_window target_incoming_window remote_outgoing_window _input_handles state",
    "link": "remote_handle delivery_count current_link_credit flow get_state",
    "transport": "sock _read_buffer close",
    "token": "handle_token _expires_on _refresh_window",
}

_COUNTERS = [
    *(("session", name) for name in _USED["session"].split()[:4]),
    *(("link", name) for name in _USED["link"].split()[1:3]),
]


def untested_version() -> str | None:
    """Why nothing but the public calls of the installed client may be used; None if its other parts are known."""
    if azure.eventhub.__version__ in TESTED:
        return None
    return f"azure-eventhub {azure.eventhub.__version__} has not been tested; tested is {', '.join(TESTED)}"


def incompatibility(handler: Any, link: Any, *, granted: int = 0) -> str | None:
    """Why the open `link` of the client's `handler` cannot be read from here; None if it can.

    `granted` is the credit that the client should have given the link already.
    """
    if (reason := untested_version()) is not None:
        return reason
    try:
        connection, session = handler._connection, handler._session
        transport = connection._transport
        parts = {
            "handler": handler,
            "connection": connection,
            "session": session,
            "link": link,
            "transport": transport,
            "token": handler._cbs_authenticator,
        }
        used = [(part, name) for part, names in _USED.items() for name in names.split()]
        missing = [f"{part}.{name}" for part, name in used if not hasattr(parts[part], name)]
        if missing:
            return f"its client lacks {', '.join(missing)}"
        if type(transport).__name__ != "SASLTransport" or not isinstance(transport.sock, socket.socket):
            return f"it has a {type(transport).__name__} and not a plain or TLS socket"
        if session._input_handles.get(link.remote_handle) is not link:
            return "its link is attached in an unexpected way"
        if session not in connection._incoming_endpoints.values():
            return "its session has no channel"
        if handler._keep_alive_thread is not None:
            return "a thread of its own reads the same socket"
        counters = [getattr(parts[part], name) for part, name in _COUNTERS]
        if not all(isinstance(each, int) for each in counters) or link.current_link_credit != granted:
            return "its counters are not as expected"
    except AttributeError as error:
        return f"its client is not as expected: {error}"
    return None


class FastLink:
    """Reads the transfers to `link` in large pieces from the socket of the client's `handler`.

    `incompatibility` must have returned None for both.

    All that is raised is what the client itself raises in the same situation, or OSError, or `MalformedError`; after
    that the connection is of no more use.
    """

    def __init__(self, handler: Any, link: Any, prefetch: int) -> None:
        """At most `prefetch` messages are asked for ahead."""
        self._token = handler._cbs_authenticator
        self._connection, self._session, self._link = handler._connection, handler._session, link
        self._transport = self._connection._transport
        self._socket: socket.socket = self._transport.sock
        self._prefetch = prefetch
        self._ahead = 0  # messages to come that are wanted: none is asked for beyond them
        channel = next(key for key, value in self._connection._incoming_endpoints.items() if value is self._session)
        self._transfers = Transfers(channel, self._link.remote_handle, self._connection._max_frame_size)
        half_read = self._transport._read_buffer.read()
        self._data = bytearray(half_read) + bytearray(_IDLE_BYTES + SLACK)
        self._have = len(half_read)  # bytes in the buffer
        self._found = 0  # where the first frame begins that has not come whole
        self._given = 0  # messages given out already
        self._failure: Exception | None = None  # that came after events which were still to be given out
        self._housekeeping = 0.0

    def receive(
        self, most: int, wait: float, ahead: int | None = None
    ) -> tuple[bytearray, Sequence[int], Sequence[int], list[bytes]]:
        """Up to `most` messages as `Transfers` describes them, with the buffer that they lie in until `release`.

        More are awaited for as long as they come without a pause; none came if there was none in `wait` seconds.
        `ahead` is how many are wanted in this call and later ones, if that is known: the peer sends no more.
        """
        starts, ends = self._transfers.starts, self._transfers.ends
        if self._given == len(starts):
            self._ahead = sys.maxsize if ahead is None else ahead
            if self._failure is not None:
                raise self._failure
            try:
                self._fill(most, time.monotonic() + wait)
            except Exception as error:
                if not starts:
                    raise
                self._failure = error
        first, self._given = self._given, min(self._given + most, len(starts))
        return self._data, starts[first : self._given], ends[first : self._given], self._transfers.joined

    def release(self) -> None:
        """The messages received have been used: leave a large buffer to others if there are no more in it."""
        rest = self._have - self._found
        if self._given == len(self._transfers.starts) and len(self._data) > 2 * _IDLE_BYTES and rest <= _IDLE_BYTES:
            large, self._data = self._data, bytearray(_IDLE_BYTES + SLACK)
            self._data[:rest] = large[self._found : self._have]
            self._have, self._found = rest, 0
            if len(_SPARE) < _MOST_SPARE:
                _SPARE.append(large)

    def fileno(self) -> int:
        """Of the socket, to wait for what comes while nobody is receiving."""
        return self._socket.fileno()

    def is_usable(self) -> bool:
        """Whether the link is of further use, to be asked while nobody is receiving: deals with what has come.

        Not if its token is about to end, or if more has come than there is room for. Raises as `receive` does.
        """
        if time.time() >= self._token._expires_on - self._token._refresh_window:
            return False
        self._ahead = 0
        if self._given == len(self._transfers.starts):
            self._begin()
            self._compact()
        while room := len(self._data) - SLACK - self._have > _IDLE_BYTES // 2:
            if not self._read(0):
                break
            self._find()
        self._check()
        return room

    def close(self) -> None:
        """Close the socket, which the client leaves open if the connection was broken when it was closed."""
        with contextlib.suppress(Exception):
            self._transport.close()

    def _fill(self, most: int, deadline: float) -> None:
        """Find up to `most` new messages, or some more that came with them."""
        starts = self._transfers.starts
        self._begin()
        while True:
            self._find()
            now = time.monotonic()
            if now >= self._housekeeping:
                self._housekeeping = now + _HOUSEKEEPING
                self._keep_house()
            if not starts:
                self._compact()
            elif len(starts) >= most or self._have >= MOST_BYTES:
                return
            pause = min(deadline - now, _PAUSE if starts else _HOUSEKEEPING)
            if pause <= 0 or (not self._read(pause) and starts):
                return

    def _begin(self) -> None:
        """All messages that were found have been used."""
        self._transfers.clear()
        self._given = 0

    def _find(self) -> None:
        self._found = self._transfers.find(self._data, self._found, self._have, self._foreign)
        self._count()
        session, link = self._session, self._link
        window, credit = session.target_incoming_window, link.current_link_credit
        wanted = max(credit, min(self._prefetch, self._ahead - len(self._transfers.starts)))
        if (credit <= self._prefetch // 2 and credit < wanted) or session.incoming_window <= window // 2:
            session.incoming_window = window
            link.flow(link_credit=wanted)  # one frame renews both
            self._check()

    def _count(self) -> None:
        """Have the client know of the frames that it has not seen."""
        frames, deliveries = self._transfers.counted()
        session, link = self._session, self._link
        session.next_incoming_id = (session.next_incoming_id + frames) & _ID_MASK
        session.incoming_window -= frames
        session.remote_outgoing_window -= frames
        link.delivery_count = (link.delivery_count + deliveries) & _ID_MASK
        link.current_link_credit -= deliveries

    def _foreign(self, channel: int, frame: bytes) -> None:
        """Have the client deal with a frame."""
        # here and not above: another version may not have it
        from azure.eventhub._pyamqp._decode import decode_empty_frame, decode_frame

        self._count()  # before it: a flow from the peer sets the same counters
        body = 4 * frame[4]
        decoded: Any
        try:
            if len(frame) > body:
                decode(frame, body)  # the client's decoder has no bounds
                decoded = decode_frame(memoryview(frame)[body:])
            else:
                decoded = decode_empty_frame(memoryview(frame)[:8])
        except MALFORMED as error:
            raise MalformedError(f"a frame that is no sound AMQP: {error}") from error
        self._connection._process_incoming_frame(channel, decoded)
        self._check()

    def _check(self) -> None:
        """Raise the error that has ended the connection, the session or the link."""
        from azure.eventhub._pyamqp.error import AMQPConnectionError, ErrorCondition

        if self._connection._error:
            raise self._connection._error
        state = self._link.get_state()  # raises the link's own error
        states = (self._connection.state.name, self._session.state.name, state.name)
        if states != ("OPENED", "MAPPED", "ATTACHED"):
            raise AMQPConnectionError(
                condition=ErrorCondition.ConnectionCloseForced,
                description=f"The connection, session and link are {', '.join(states)}.",
            )

    def _keep_house(self) -> None:
        self._connection._get_remote_timeout(time.time())  # sends the heartbeat when it is due
        self._token.handle_token()
        self._check()

    def _compact(self) -> None:
        """Move what is left to the beginning of the buffer, and have room for a whole frame."""
        rest = self._data[self._found : self._have]
        self._data[: len(rest)] = rest
        self._have, self._found = len(rest), 0

    def _read(self, pause: float) -> bool:
        """Read what has come, or what comes within `pause` seconds; whether something has."""
        if len(self._data) - SLACK - self._have < _IDLE_BYTES // 2:
            try:
                large = _SPARE.pop()  # of several threads only one gets the last
            except IndexError:
                large = bytearray(MOST_BYTES + _READ_BYTES + SLACK)
            large[: self._have] = self._data[: self._have]
            self._data = large
        before, have, records = self._socket.gettimeout(), self._have, isinstance(self._socket, ssl.SSLSocket)
        self._socket.settimeout(pause)
        try:
            with memoryview(self._data) as view:
                end = min(len(view) - SLACK, have + _READ_BYTES)
                while self._have < end:
                    received = self._socket.recv_into(view[self._have : end])
                    if not received:
                        raise ConnectionError("the peer has closed the connection")
                    self._have += received
                    if not records:
                        break
                    self._socket.settimeout(0)  # a TLS record has at most 16 KB: take those that are there
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            self._socket.settimeout(before)
        if self._have > have:
            self._connection._last_frame_received_time = time.time()
        return self._have > have
