"""A receiver of one partition that stays open and knows where it is."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError, MalformedEventError
from spark_ehbalance.hub import public, rows
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.socket_timeout import cut_off_after
from spark_ehbalance.hub.unreadable import FAIL, SKIP, settle
from spark_ehbalance.hub.wire.columns import Columns, Made
from spark_ehbalance.hub.wire.link import MOST_BYTES, FastLink, incompatibility, untested_version
from spark_ehbalance.hub.wire.values import MALFORMED

_LOG = logging.getLogger(__name__)

#: Seconds that the client waits on its socket in one go. Its default of 0.2 holds up every short read that long.
SOCKET_TIMEOUT = 0.02

#: Seconds for TLS and SASL together: several round trips, also to another continent.
_OPEN_TIMEOUT = 20.0


class Disconnected(Exception):
    """Another receiver has taken the partition: this one was disconnected or refused, by the rules for owner levels.

    `epoch` is the other's owner level where Event Hubs has told it.
    """

    def __init__(self, text: str, epoch: int | None) -> None:
        super().__init__(text)
        self.epoch = epoch


class RefusedError(HubUnavailableError):
    """The credentials were refused, or their time is over."""


class Unreachable(Exception):
    """The connection broke or was refused for a reason that may pass: open a new receiver and go on."""


class Undecodable(Unreachable):
    """The client's public calls cannot decode one of the next events, and give out none: ask a new receiver for one."""


@dataclass(frozen=True, slots=True)
class PartitionAddress:
    """One partition as seen by one consumer group."""

    connection: Connection
    consumer_group: str
    partition: str


class Receiver:
    """Receives the events of `source` as rows, in order and without a gap, from sequence number `start` on, or from
    the first event enqueued at or after the time `start`.

    `owner_level` None shares the partition with up to four others; a number shuts out all with the same or a lower
    one. `json_properties` is as for `rows.record_batch`, `on_malformed` as for `unreadable.settle`. Without `fast`, or
    where the installed client is not one that the hot loop knows, events come by the client's public calls: the same
    rows, at more than ten times the cost.

    Receiving raises `Disconnected`, `Unreachable`, `MalformedEventError` or `RefusedError`, after which the receiver is
    closed.
    """

    def __init__(
        self,
        source: PartitionAddress,
        start: int | datetime,
        *,
        owner_level: int | None,
        prefetch: int,
        json_properties: bool = False,
        on_malformed: str = FAIL,
        fast: bool = True,
    ) -> None:
        #: The lowest sequence number that the next event can have, None if nothing is known about it.
        self.next = start if isinstance(start, int) else None
        #: That of the first event that came with the last call, None if it is not known.
        self.first: int | None = None
        self._on_malformed = on_malformed
        self._failure: str | None = None  # of the event after those given out
        self._left_out = 0
        self._source = source
        self._prefetch = prefetch
        self._json = json_properties
        self._fast = fast
        self._start = start
        self._owner_level = owner_level
        self.closed = False
        self._link: FastLink | None = None
        self._public: public.PublicReceiver | None = None
        self._columns = Columns(source.partition, json_properties)
        self._client: Any = self._make_client()
        self._consumer: Any = None

    def _make_client(self, **settings: Any) -> EventHubConsumerClient:
        return self._source.connection.consumer_client(
            self._source.consumer_group, **{"retry_total": 0, "socket_timeout": SOCKET_TIMEOUT, **settings}
        )

    def receive(self, most: int, wait: float, ahead: int | None = None) -> pa.RecordBatch:
        """Up to `most` rows of `rows.ARROW_SCHEMA`; more are awaited only as long as they come without a pause.

        None if none came within `wait` seconds, or if it is closed. `ahead` is how many are wanted now and later, if
        that is known: the hub sends no more than that. It closes itself after an event that the client's public calls
        cannot decode.
        """
        if self.closed:
            return self._made([], {}).batch
        if self._failure is not None:
            self._fail(self._failure)
        deadline = time.monotonic() + wait
        try:
            if self._link is None and self._public is None:
                self._begin()
            if self._public is not None:
                made = self._receive_public(self._public, most, deadline)
            else:
                assert self._link is not None
                made = self._receive_fast(self._link, most, wait, ahead)
        except EventHubError as error:
            self.close()
            if self._link is None and (reason := _undecodable(error)):
                if self._prefetch > 1:  # it may not be the next one
                    raise Undecodable(reason) from error
                return self._settled(self._made([rows.unreadable(None, rows.UnreadableError(reason))], {0: reason}))
            raise _meaning(error, self._source) from error
        except Unreachable:
            self.close()
            raise
        return self._settled(made)

    def _settled(self, made: Made) -> pa.RecordBatch:
        batch, self.first, self.next, problem = settle(*made, self.next, self._on_malformed)
        if problem is not None and self._on_malformed == FAIL:
            if not batch.num_rows:
                self._fail(problem)
            self._failure = problem
        elif problem is not None and self._on_malformed == SKIP:
            self._left_out += len(made.unreadable)
            _LOG.warning(
                "partition %s: %d events left out, because onMalformed=skip, %d since the receiver was opened: %s",
                self._source.partition, len(made.unreadable), self._left_out, problem,
            )  # fmt: skip
        return batch

    def _fail(self, problem: str) -> NoReturn:
        self.close()
        raise MalformedEventError(
            f"partition {self._source.partition}: {problem}. Set onMalformed=skip to go on without such events, or "
            f"onMalformed=keep to have a row for each with its bytes"
        )

    def fileno(self) -> int:
        """Of its socket: what comes there while nobody receives is a reason to ask whether it `is_usable`."""
        return -1 if self._link is None else self._link.fileno()

    def is_usable(self) -> bool:
        """Whether it can be kept for later: not if it is disconnected, if its token is about to end, or if events
        come by the client's public calls, which do not tell."""
        try:
            return self._link is not None and self._link.is_usable()
        except Exception:  # of whatever kind: it ends here
            return False

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.closed = True
        for closing in (self._consumer, self._public, self._client):
            if closing is not None:
                with contextlib.suppress(Exception):  # a connection that is broken already has nothing left to close
                    closing.close()
        if self._link is not None:
            self._link.close()

    def _begin(self) -> None:
        """Open the connection by whichever way the client allows."""
        reason = untested_version() if self._fast else ""
        if reason is None:
            reason = self._take_over()
        if reason:
            _warn_once(reason)
        if reason is not None:
            source = self._source
            self._public = public.PublicReceiver(
                self._make_client(**public.SETTINGS),
                source.connection.namespace,
                source.partition,
                self._start,
                self._owner_level,
                self._prefetch,
            )

    def _take_over(self) -> str | None:
        """Have the client open the link, and take it over; or why that cannot be done."""
        try:
            self._consumer = self._make_consumer()
        except (AttributeError, TypeError) as error:
            return f"its client is not as expected: {error}"
        try:
            self._open()
            handler = self._consumer._handler
            reason = incompatibility(handler, handler._link)
            if reason is None:
                self._link = FastLink(handler, handler._link, self._prefetch)
                return None
        except (EventHubError, Unreachable):
            raise
        except Exception as error:
            raise self._consumer._handle_exception(error, is_consumer=True) from error
        self._consumer.close()
        return reason

    def _make_consumer(self) -> Any:
        consumer = self._client._create_consumer(
            self._source.consumer_group,
            self._source.partition,
            self._start,
            lambda _: None,
            owner_level=self._owner_level,
            prefetch=self._prefetch,
            event_position_inclusive=True,
        )
        # The keep-alive thread makes every close wait for it, and must not exist in a process that forks.
        # A receiver that was idle for too long is dropped by the service and opened anew.
        consumer._keep_alive = 0
        return consumer

    def _open(self) -> None:
        """Open the connection and attach the link, without any credit yet."""
        deadline = time.monotonic() + _OPEN_TIMEOUT
        with cut_off_after(_OPEN_TIMEOUT, lambda: self._consumer._handler._connection):
            try:
                while not self._consumer._open():
                    if time.monotonic() >= deadline:
                        raise Unreachable(f"{self._source.connection.namespace} has not attached the link in time")
            except Exception:
                if self._consumer.running:
                    raise
                raise Unreachable(f"no connection could be made to {self._source.connection.namespace}") from None

    def _receive_fast(self, link: FastLink, most: int, wait: float, ahead: int | None) -> Made:
        try:
            return self._columns.record_batch(*link.receive(most, wait, ahead))
        except (EventHubError, Unreachable):
            raise
        except Exception as error:
            raise self._consumer._handle_exception(error, is_consumer=True) from error
        finally:
            link.release()

    def _receive_public(self, way: public.PublicReceiver, most: int, deadline: float) -> Made:
        events: list[rows.Event] = []
        unreadable: dict[int, str] = {}
        size = 0
        while len(events) < most and size < MOST_BYTES and (not events or way.more):
            event = way.next(deadline)
            if event is None:
                break
            try:
                events.append(rows.received(event))
            except rows.UnreadableError as error:
                unreadable[len(events)] = str(error)
                events.append(rows.unreadable(None, error))
            size += len(events[-1][0] or b"")
        if not events:
            way.check()
        return self._made(events, unreadable)

    def _made(self, events: list[rows.Event], unreadable: dict[int, str]) -> Made:
        return Made(rows.record_batch(events, self._source.partition, json_properties=self._json), unreadable)


@functools.cache
def _warn_once(reason: str) -> None:
    _LOG.warning("events are received by the slower public calls of azure-eventhub: %s", reason)


def _undecodable(error: BaseException) -> str | None:
    """Why the client could not decode what came, if that has caused the error; all of it is what its decoder raises."""
    cause = error.__context__
    if cause is None or isinstance(cause, EventHubError):
        return None
    return f"the client's decoder: {cause!r}" if isinstance(cause, (*MALFORMED, LookupError)) else _undecodable(cause)


def _meaning(error: EventHubError, source: PartitionAddress) -> Exception:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    told = re.search(r" epoch (?:of )?'(\d+)'", text)  # the first one is the other's; "epoch" alone may be a hub's name
    if told or getattr(error, "error", None) == "link:stolen":
        return Disconnected(text, int(told[1]) if told else None)
    if isinstance(error, AuthenticationError) or getattr(error, "error", None) == "unauthorized-access":
        hub, namespace = source.connection.hub, source.connection.namespace
        return RefusedError(
            f"partition {source.partition}: event hub {hub!r} at {namespace} refused the credentials: {text}"
        )
    return Unreachable(text)
