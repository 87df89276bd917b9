"""Receiving by the public calls of azure-eventhub alone, for a client that the hot loop does not know."""

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

#: Events at a time: 0.2 s at the most where they trickle in, and few where they are large.
_EVENTS = 10

#: Settings of the client: whoever receives decides about the next attempt; a thread of the client ends within so many
#: seconds of its close.
SETTINGS = {"retry_total": 0, "load_balancing_interval": 1.0}

#: Seconds in which the connection of a receiver that is closed has ended.
_END = 0.3


class PublicReceiver:
    """Has the client call back in a thread, which waits until what it brings is taken.

    `client` is one of `namespace`, with `SETTINGS`; the rest is as for `Receiver`.
    """

    def __init__(
        self,
        client: EventHubConsumerClient,
        namespace: str,
        partition: str,
        start: int | datetime,
        owner_level: int | None,
        prefetch: int,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._partition = partition
        self._brought: queue.Queue[list[EventData] | EventHubError] = queue.Queue(1)
        self._left = deque[EventData]()
        self._most = min(_EVENTS, prefetch)
        self._full = True
        self._failure: EventHubError | None = None
        self._begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._receive, args=(start, owner_level), name="ehbalance-public-receiver", daemon=True
        )
        self._thread.start()

    @property
    def more(self) -> bool:
        """Whether more may be there already: as many came as were asked for, or are still to be given out."""
        return bool(self._left) or self._full

    def next(self, deadline: float) -> EventData | None:
        """The next event; None if none comes before `deadline`, of the monotonic clock, or if `check` fails."""
        return self._left.popleft() if self._left or self._take(deadline) else None

    def check(self) -> None:
        """Raise the `EventHubError` that has ended it."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the connection. May be called twice."""
        self._ended.set()
        if self._begun.is_set():  # a client that is closed before would not stop
            self._client.close()
            self._thread.join(_END)

    def _take(self, deadline: float) -> bool:
        """Whether there is something left to give out, now or before `deadline`."""
        if self._failure is not None:
            return False
        try:
            brought = self._brought.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False
        if isinstance(brought, EventHubError):
            self._failure = brought
            return False
        self._left.extend(brought)
        self._full = len(brought) == self._most
        return True

    # --- in threads --------------------------------------------------------------------------------------------

    def _receive(self, start: int | datetime, owner_level: int | None) -> None:
        def begin(_: Any) -> None:
            self._begun.set()
            if self._ended.is_set():
                self._client.close()

        def fail(_: Any, error: Exception) -> None:
            self._client.close()  # or it would open anew, by itself, and disconnect a new owner
            self._fail(error)

        try:
            self._client.receive_batch(
                lambda _, events: self._bring(events),
                partition_id=self._partition,
                owner_level=owner_level,
                starting_position=start,
                starting_position_inclusive=True,
                prefetch=self._most,
                max_batch_size=self._most,
                on_partition_initialize=begin,
                on_error=fail,
            )
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, EventHubError):
            error = EventHubError(str(error) or repr(error))
        elif "Failed to initiate the connection" in str(error):
            error = EventHubError(f"no connection could be made to {self._namespace}")
        self._bring(error)

    def _bring(self, what: list[EventData] | EventHubError) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._brought.put(what, timeout=0.1)
                return
