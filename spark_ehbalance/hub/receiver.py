"""A receiver of one partition that stays open and knows where it is."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub import rows
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.watchdog import cut_off_after
from spark_ehbalance.hub.wire.columns import Columns
from spark_ehbalance.hub.wire.link import MOST_BYTES, HotLink, unfit

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
    one. `json_properties` is as for `rows.record_batch`. Without `hot`, or where the installed client is not one that
    the hot loop knows, events come by the client's public calls: the same rows, at more than ten times the cost.

    Receiving raises `Disconnected`, `Unreachable` or `RefusedError`, after which the receiver is closed.
    """

    def __init__(
        self,
        source: Source,
        start: int | datetime,
        *,
        owner_level: int | None,
        prefetch: int,
        json_properties: bool = False,
        hot: bool = True,
    ) -> None:
        self.next = start if isinstance(start, int) else None
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
        that is known: the hub sends no more than that.
        """
        if self._consumer.closed:
            return self._rows([])
        deadline = time.monotonic() + wait
        try:
            try:
                if not self._consumer.running:
                    self._open()
                if self._link is None:
                    batch = self._receive_public(most, deadline)
                else:
                    batch = self._receive_hot(self._link, most, wait, ahead)
            except (EventHubError, Unreachable):
                raise
            except Exception as error:
                raise self._consumer._handle_exception(error, is_consumer=True) from error
        except EventHubError as error:
            self.close()
            raise _meaning(error, self._source) from error
        except Unreachable:
            self.close()
            raise
        if batch.num_rows:
            self.next = rows.numbers(batch)[-1].as_py() + 1
        return batch

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

    def _receive_hot(self, link: HotLink, most: int, wait: float, ahead: int | None) -> pa.RecordBatch:
        try:
            return self._columns.record_batch(*link.receive(most, wait, ahead))
        finally:
            link.release()

    def _receive_public(self, most: int, deadline: float) -> pa.RecordBatch:
        events: list[rows.Event] = []
        size = 0
        while len(events) < most and size < MOST_BYTES:
            asked = min(most - len(events), _PUBLIC_EVENTS)
            # The client reads as many frames as it has credit for, as long as there are less than 20 ms between them.
            self._consumer._prefetch = asked
            # With its own max_wait_time the client would wait for a full batch.
            self._consumer.receive(batch=True, max_batch_size=asked)
            if not self._consumer.running:  # the client keeps that to itself, and would try again without a pause
                raise Unreachable(f"no connection could be made to {self._source.connection.namespace}")
            came, self._received[:] = list(map(rows.received, self._received)), []
            events += came
            size += sum(len(body) for body, _, _ in came)
            if (events and len(came) < asked) or time.monotonic() >= deadline:
                break
        return self._rows(events)

    def _rows(self, events: list[rows.Event]) -> pa.RecordBatch:
        return rows.record_batch(events, self._source.partition, json_properties=self._json)


@functools.cache
def _warn_once(reason: str) -> None:
    _LOG.warning("events are received by the slower public calls of azure-eventhub: %s", reason)


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
