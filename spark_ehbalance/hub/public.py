"""Receives by the public calls of azure-eventhub alone, for a client that is not compatible with the fast path."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from datetime import datetime
from typing import Any

from azure.eventhub import EventData, EventHubConsumerClient
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.rows import Rows

#: Bytes of bodies after which a batch is complete.
MOST_BYTES = 4 << 20

#: Events requested at a time: they take at most 0.2 s where they trickle in, and need little memory where they are
#: large.
_EVENTS = 10

#: Settings of the client: the caller decides about the next attempt; after a close a thread of the client ends within
#: `load_balancing_interval` seconds.
SETTINGS = {"retry_total": 0, "load_balancing_interval": 1.0}

#: Seconds within which the connection ends after a close.
_END = 0.3

#: Seconds for which one receiver is used: 30 s after it has opened its connection, a keep-alive thread of the client
#: begins to read from it beside the thread that receives, and then events change places, or parts of large ones do.
LIFE = 20.0


class PublicReceiver:
    """A thread in which the client calls back, and which waits until the events of a call are taken.

    `client` is a client of `namespace` with `SETTINGS`; after `life` seconds no more events are taken from it. The
    other parameters are as for `Receiver`.
    """

    def __init__(
        self,
        client: EventHubConsumerClient,
        namespace: str,
        partition: str,
        start: int | datetime | str,
        inclusive: bool,
        owner_level: int | None,
        prefetch: int,
        json_properties: bool,
        life: float,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._partition = partition
        self._json = json_properties
        self._last_moment = time.monotonic() + life
        self._delivered: queue.Queue[list[EventData] | EventHubError] = queue.Queue(1)
        self._left = deque[EventData]()
        self._most = min(_EVENTS, prefetch)
        self._full = True  # the last delivery had as many events as were requested: more may have come already
        self._failure: EventHubError | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(start, inclusive, owner_level), name="ehbalance-public-receiver", daemon=True
        )
        self._thread.start()

    def is_over(self) -> bool:
        """Whether another receiver is needed: this one takes no more events."""
        return time.monotonic() >= self._last_moment

    def receive(self, most: int, deadline: float) -> Rows:
        """Up to `most` rows; none if no event comes before `deadline` on the monotonic clock.

        Raises the `EventHubError` that has ended the connection, after all events before it were returned.
        """
        events: list[rows.Event] = []
        unreadable: dict[int, str] = {}
        size = 0
        while len(events) < most and size < MOST_BYTES and (not events or self._left or self._full):
            event = self._next(deadline)
            if event is None:
                break
            try:
                events.append(rows.received(event))
            except rows.UnreadableError as error:
                unreadable[len(events)] = str(error)
                events.append(rows.unreadable(None, error))
            size += len(events[-1][0] or b"")
        if not events and self._failure is not None:
            raise self._failure
        return Rows(rows.record_batch(events, self._partition, json_properties=self._json), unreadable)

    def close(self) -> None:
        """End the connection. May be called twice."""
        self._ended.set()
        if self._started.is_set():  # a client that is closed before it has started would not stop
            self._client.close()
            self._thread.join(_END)

    def _next(self, deadline: float) -> EventData | None:
        """The next event; None if none comes before `deadline`, or if there was a failure."""
        return self._left.popleft() if self._left or self._take(deadline) else None

    def _take(self, deadline: float) -> bool:
        """Take what was delivered, waiting for it until `deadline`; returns whether there are events."""
        if self._failure is not None or self.is_over():
            return False
        try:
            delivered = self._delivered.get(timeout=max(0.0, min(deadline, self._last_moment) - time.monotonic()))
        except queue.Empty:
            return False
        if isinstance(delivered, EventHubError):
            self._failure = delivered
            return False
        self._left.extend(delivered)
        self._full = len(delivered) == self._most
        return True

    # --- in threads --------------------------------------------------------------------------------------------

    def _run(self, start: int | datetime | str, inclusive: bool, owner_level: int | None) -> None:
        def started(_: Any) -> None:
            self._started.set()
            if self._ended.is_set():
                self._client.close()

        def failed(_: Any, error: Exception) -> None:
            self._client.close()  # or it would reconnect by itself, and disconnect a new owner
            self._fail(error)

        try:
            self._client.receive_batch(
                lambda _, events: self._deliver(events),
                partition_id=self._partition,
                owner_level=owner_level,
                starting_position=start,
                starting_position_inclusive=inclusive,
                prefetch=self._most,
                max_batch_size=self._most,
                on_partition_initialize=started,
                on_error=failed,
            )
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, EventHubError):
            cause, error = error, EventHubError(str(error) or repr(error))
            error.__cause__ = cause
        elif "Failed to initiate the connection" in str(error):
            cause, error = error, EventHubError(f"no connection could be made to {self._namespace}")
            error.__cause__ = cause
        self._deliver(error)

    def _deliver(self, delivered: list[EventData] | EventHubError) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._delivered.put(delivered, timeout=0.1)
                return
