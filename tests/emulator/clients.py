"""The real Azure client with settings for fast tests: no keep-alive threads, short socket timeouts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

DEADLINE = 60.0  # seconds within which an expected condition must hold
QUIET = 0.3  # seconds without an event that mark the end of a partition
FAST = {"socket_timeout": 0.005, "retry_total": 0, "retry_backoff_factor": 0.01}


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition. Raises AssertionError with `what` after the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"timed out waiting until {what}"
        time.sleep(0.01)


class Reader:
    """Reads one partition with the real client's consumer."""

    def __init__(
        self,
        connection: str,
        partition: str = "0",
        start: str | int | datetime | None = "-1",
        inclusive: bool = False,
        group: str = "$Default",
        owner_level: int | None = None,
        **options: Any,
    ) -> None:
        self._client = EventHubConsumerClient.from_connection_string(connection, group, **(FAST | options))
        self.events: list[EventData] = []
        self._consumer = self._client._create_consumer(
            group,
            partition,
            start,  # type: ignore[arg-type]
            self.events.extend,  # type: ignore[arg-type]
            owner_level=owner_level,
            event_position_inclusive=inclusive,
        )
        self._consumer._keep_alive = 0

    def open(self) -> Reader:
        """Attach. Raises the client's exception if the link is refused."""
        self.poll()
        wait_until(lambda: self._consumer.handler_ready or self.poll(), "the receiver is attached")
        self.poll()  # a refusal follows the attach
        return self

    def poll(self) -> None:
        self._consumer.receive(batch=True, max_batch_size=10_000, max_wait_time=0.001)

    def read(self, count: int) -> list[EventData]:
        """Poll until `count` events have arrived."""
        wait_until(lambda: self.poll() or len(self.events) >= count, f"{count} events have arrived")
        return self.events

    def read_all(self) -> list[EventData]:
        """Poll until no event has arrived for a while."""
        last, count = time.monotonic(), -1
        while time.monotonic() < last + QUIET:
            self.poll()
            if len(self.events) != count:
                last, count = time.monotonic(), len(self.events)
        return self.events

    def close(self) -> None:
        self._consumer.close()
        self._client.close()


@contextlib.contextmanager
def reader(connection: str, partition: str = "0", **options: Any) -> Iterator[Reader]:
    """Yield an attached reader, and close it at the end."""
    opened = Reader(connection, partition, **options)
    try:
        yield opened.open()
    finally:
        opened.close()


def read(connection: str, count: int, partition: str = "0", **options: Any) -> list[EventData]:
    """The first `count` events of a reader."""
    with reader(connection, partition, **options) as events:
        return events.read(count)


def refusal(connection: str, **options: Any) -> EventHubError:
    """The error with which the server refuses a receiver."""
    with pytest.raises(EventHubError) as caught, reader(connection, **options):
        pass
    return caught.value


def detached(events: Reader) -> EventHubError:
    """The error with which the server detaches an attached receiver."""
    with pytest.raises(EventHubError) as caught:
        wait_until(events.poll, "the receiver is detached")
    return caught.value


@contextlib.contextmanager
def producer(connection: str, **options: Any) -> Iterator[EventHubProducerClient]:
    """Yield a producer client, and close it at the end."""
    with EventHubProducerClient.from_connection_string(connection, **({"socket_timeout": 0.005} | options)) as client:
        yield client


def numbers(events: list[EventData]) -> list[int | None]:
    return [event.sequence_number for event in events]


def bodies(events: list[EventData]) -> list[bytes]:
    return [b"".join(event.body) for event in events]  # type: ignore[arg-type]
