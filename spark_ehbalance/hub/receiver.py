"""A receiver of one partition that stays open and knows where it is."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.watchdog import cut_off_after

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


class Unreachable(Exception):
    """The connection broke or was refused for a reason that may pass: open a new receiver and go on."""


@dataclass(frozen=True, slots=True)
class Source:
    """One partition as seen by one consumer group."""

    connection: Connection
    consumer_group: str
    partition: str


class Receiver:
    """Receives the events of `source` in order and without a gap, from sequence number `start` on, or from the first
    event enqueued at or after the time `start`.

    `owner_level` None shares the partition with up to four others; a number shuts out all with the same or a lower
    one. Receiving raises `Disconnected`, `Unreachable`, or `HubUnavailableError` if the credentials are refused, after
    which the receiver is closed.
    """

    def __init__(self, source: Source, start: int | datetime, *, owner_level: int | None, prefetch: int) -> None:
        self.next = start if isinstance(start, int) else None
        self._source = source
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

    def receive(self, most: int, wait: float) -> list[EventData]:
        """Up to `most` events, as soon as there are any; none if none came within `wait` seconds."""
        deadline = time.monotonic() + wait
        try:
            if not self._consumer.running:
                with cut_off_after(_OPEN_TIMEOUT, lambda: self._consumer._handler._connection):
                    self._consumer.receive(batch=True, max_batch_size=most)
            while not self._received:
                # With its own max_wait_time the client would wait for a full batch.
                self._consumer.receive(batch=True, max_batch_size=most)
                if not self._consumer.running:  # the client keeps that to itself, and would try again without a pause
                    self.close()
                    raise Unreachable(f"no connection could be made to {self._source.connection.namespace}")
                if time.monotonic() >= deadline:
                    break
        except EventHubError as error:
            self.close()
            raise _meaning(error, self._source) from error
        events, self._received[:] = list(self._received), []
        if events:
            self.next = number(events[-1]) + 1
        return events

    def close(self) -> None:
        """Close the connection. May be called twice."""
        for closing in (self._consumer, self._client):
            with contextlib.suppress(Exception):  # a connection that is broken already has nothing left to close
                closing.close()


def _meaning(error: EventHubError, source: Source) -> Exception:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    told = re.search(r" epoch (?:of )?'(\d+)'", text)  # the first one is the other's; "epoch" alone may be a hub's name
    if told or getattr(error, "error", None) == "link:stolen":
        return Disconnected(text, int(told[1]) if told else None)
    if isinstance(error, AuthenticationError):
        hub, namespace = source.connection.hub, source.connection.namespace
        return HubUnavailableError(
            f"partition {source.partition}: event hub {hub!r} at {namespace} refused the credentials: {text}"
        )
    return Unreachable(text)


def number(event: EventData) -> int:
    """The sequence number of a received event (which the client's types take for optional)."""
    assert event.sequence_number is not None
    return event.sequence_number
