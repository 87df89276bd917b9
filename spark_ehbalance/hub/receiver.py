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
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError, MalformedEventError
from spark_ehbalance.hub import rows
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.unreadable import FAIL, SKIP, settle
from spark_ehbalance.hub.watchdog import cut_off_after
from spark_ehbalance.hub.wire.columns import Columns, Made
from spark_ehbalance.hub.wire.link import MOST_BYTES, HotLink, unfit
from spark_ehbalance.hub.wire.values import MALFORMED

_LOG = logging.getLogger(__name__)

#: Seconds that the client waits on its socket in one go. Its default of 0.2 holds up every short read that long.
SOCKET_TIMEOUT = 0.02

#: Seconds for TLS and SASL together: several round trips, also to another continent.
_OPEN_TIMEOUT = 20.0

#: Events at a time by the client's public calls: 0.2 s at the most where they trickle in, and few where they are large.
_PUBLIC_EVENTS = 10


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
class Source:
    """One partition as seen by one consumer group."""

    connection: Connection
    consumer_group: str
    partition: str


class Receiver:
    """Receives the events of `source` as rows, in order and without a gap, from sequence number `start` on, or from
    the first event enqueued at or after the time `start`.

    `owner_level` None shares the partition with up to four others; a number shuts out all with the same or a lower
    one. `json_properties` is as for `rows.record_batch`, `on_malformed` as for `unreadable.settle`. Without `hot`, or
    where the installed client is not one that the hot loop knows, events come by the client's public calls: the same
    rows, at more than ten times the cost.

    Receiving raises `Disconnected`, `Unreachable`, `MalformedEventError` or `RefusedError`, after which the receiver is
    closed.
    """

    def __init__(
        self,
        source: Source,
        start: int | datetime,
        *,
        owner_level: int | None,
        prefetch: int,
        json_properties: bool = False,
        on_malformed: str = FAIL,
        hot: bool = True,
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
        self._hot = hot
        self._link: HotLink | None = None
        self._columns = Columns(source.partition, json_properties)
        self._received: list[EventData] = []
        client: Any = source.connection.consumer_client(
            source.consumer_group, retry_total=0, socket_timeout=SOCKET_TIMEOUT
        )
        self._client = client
        self._consumer = client._create_consumer(
            source.consumer_group,
            source.partition,
            start,
            self._received.extend,
            owner_level=owner_level,
            prefetch=prefetch,
            event_position_inclusive=True,
        )
        # The keep-alive thread makes every close wait for it, and must not exist in a process that forks.
        # A receiver that was idle for too long is dropped by the service and opened anew.
        self._consumer._keep_alive = 0

    def receive(self, most: int, wait: float, ahead: int | None = None) -> pa.RecordBatch:
        """Up to `most` rows of `rows.ARROW_SCHEMA`; more are awaited only as long as they come without a pause.

        None if none came within `wait` seconds, or if it is closed. `ahead` is how many are wanted now and later, if
        that is known: the hub sends no more than that. It closes itself after an event that the client's public calls
        cannot decode.
        """
        if self._consumer.closed:
            return self._made([], {}).batch
        if self._failure is not None:
            self._fail(self._failure)
        deadline = time.monotonic() + wait
        try:
            try:
                if not self._consumer.running:
                    self._open()
                if self._link is None:
                    made = self._receive_public(most, deadline)
                else:
                    made = self._receive_hot(self._link, most, wait, ahead)
            except (EventHubError, Unreachable):
                raise
            except Exception as error:
                raise self._consumer._handle_exception(error, is_consumer=True) from error
        except EventHubError as error:
            self.close()
            if self._link is None and (reason := _undecodable(error)):
                if most > 1:
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

    @property
    def closed(self) -> bool:
        return bool(self._consumer.closed)

    def fileno(self) -> int:
        """Of its socket: what comes there while nobody receives is a reason to ask whether it `stands`."""
        return -1 if self._link is None else self._link.fileno()

    def stands(self) -> bool:
        """Whether it can be kept for later: not if it is disconnected, if its token is about to end, or if events
        come by the client's public calls, which do not tell."""
        try:
            return self._link is not None and self._link.stands()
        except Exception:  # of whatever kind: it ends here
            return False

    def close(self) -> None:
        """Close the connection. May be called twice."""
        for closing in (self._consumer, self._client):
            with contextlib.suppress(Exception):  # a connection that is broken already has nothing left to close
                closing.close()
        if self._link is not None:
            self._link.close()

    def _open(self) -> None:
        """Open the connection and attach the link, without any credit yet; take it over if that can be done."""
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
        if self._hot:
            handler = self._consumer._handler
            reason = unfit(handler, handler._link)
            if reason is None:
                self._link = HotLink(handler, handler._link, self._prefetch)
            else:
                _warn_once(reason)

    def _receive_hot(self, link: HotLink, most: int, wait: float, ahead: int | None) -> Made:
        try:
            return self._columns.record_batch(*link.receive(most, wait, ahead))
        finally:
            link.release()

    def _receive_public(self, most: int, deadline: float) -> Made:
        events: list[rows.Event] = []
        unreadable: dict[int, str] = {}
        size = 0
        while len(events) < most and size < MOST_BYTES:
            asked = min(most - len(events), _PUBLIC_EVENTS, self._prefetch)
            # The client reads as many frames as it has credit for, as long as there are less than 20 ms between them.
            self._consumer._prefetch = asked
            # With its own max_wait_time the client would wait for a full batch.
            self._consumer.receive(batch=True, max_batch_size=asked)
            if not self._consumer.running:  # the client keeps that to itself, and would try again without a pause
                raise Unreachable(f"no connection could be made to {self._source.connection.namespace}")
            came, self._received[:] = list(self._received), []
            for event in came:
                try:
                    events.append(rows.received(event))
                except rows.UnreadableError as error:
                    unreadable[len(events)] = str(error)
                    events.append(rows.unreadable(None, error))
                size += len(events[-1][0] or b"")
            if (events and len(came) < asked) or time.monotonic() >= deadline:
                break
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


def _meaning(error: EventHubError, source: Source) -> Exception:
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
