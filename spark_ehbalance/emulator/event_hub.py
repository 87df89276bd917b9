"""A hub for tests, which can inspect the events that arrived, add events to read, and inject faults."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from spark_ehbalance.emulator.amqp.codec import Timestamp
from spark_ehbalance.emulator.broker import Hub
from spark_ehbalance.emulator.emulator import Emulator
from spark_ehbalance.emulator.message import PARTITION_KEY, parse_content

_POLL = 0.005  # seconds


@dataclass(frozen=True)
class ArrivedEvent:
    """An event in a hub.

    `body` is bytes, a value of another AMQP type, or None if the event has no body. Times are in UTC.
    """

    body: Any
    partition_key: str | None
    properties: dict[str, Any]
    partition: str
    sequence_number: int
    enqueued_time: datetime
    message_id: Any = None
    correlation_id: Any = None
    content_type: str | None = None


class EventHub:
    """An event hub of an emulator in this process. For more operations, use its attribute `emulator`."""

    def __init__(self, emulator: Emulator, name: str) -> None:
        """Raises ValueError if the hub does not exist."""
        self.emulator = emulator
        self.name = name
        emulator.partition_state(name, 0)

    @property
    def connection_string(self) -> str:
        """The connection string of this hub; `emulator.connection_string()` returns the namespace's."""
        return self.emulator.connection_string(self.name)

    def events(self) -> list[ArrivedEvent]:
        """The hub's events, in order of arrival."""
        return [_event(partition, message) for _, _, partition, message in self.emulator._on_hub(self.name, _messages)]

    def wait_for_events(self, count: int, timeout: float = 10.0) -> list[ArrivedEvent]:
        """Wait until the hub has at least `count` events, and return all of them. Raises TimeoutError after `timeout`
        seconds."""
        end = time.monotonic() + timeout
        while len(events := self.events()) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"hub {self.name} has {len(events)} events after {timeout:g} s, not {count}")
            time.sleep(_POLL)
        return events

    def append(
        self,
        *bodies: bytes | str,
        partition: str | int | None = None,
        partition_key: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Add events without a client. Without a `partition`, the hub chooses one for each event: by `partition_key`,
        or round-robin."""
        for body in bodies:
            if not isinstance(body, (bytes, bytearray, memoryview, str)):
                raise TypeError(f"the body {body!r} is {type(body).__name__}, not bytes or str")
            target = (
                self.emulator._on_hub(self.name, lambda hub: hub.route(partition_key))
                if partition is None
                else partition
            )
            encoded = body.encode() if isinstance(body, str) else body
            self.emulator.append(self.name, target, [encoded], properties, partition_key)

    def busy(self, count: int = 0) -> AbstractContextManager[object]:
        """Refuse the next `count` attaches, sends, deliveries and requests for properties, or all of them if `count` is
        0, as a throttled hub does. Ends with the `with` block, or with the test."""
        self.emulator.server_busy(count, 0.0 if count else math.inf, self.name)
        return _on_exit(self.emulator.server_busy, hub=self.name)

    def unreachable(self) -> AbstractContextManager[object]:
        """Reset all connections of the emulator and refuse new ones, as if it were unreachable. Ends with the `with`
        block, or with the test."""
        self.emulator.refuse_connections()
        self.emulator.drop_connections()
        return _on_exit(self.emulator.refuse_connections, False)


def _on_exit(call: Any, *arguments: Any, **more: Any) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.callback(call, *arguments, **more)
    return stack


def _messages(hub: Hub) -> list[tuple[int, int, str, bytes]]:
    """The readable events in order of arrival, each as (arrival, sequence number, partition, message)."""
    return sorted(
        (*event[:2], str(index), event[2]) for index, log in enumerate(hub.partitions) for event in log.messages()
    )


def _event(partition: str, message: bytes) -> ArrivedEvent:
    annotations, properties, application, body = parse_content(message)
    message_id, correlation_id, content_type = ([*properties, *[None] * 7][field] for field in (0, 5, 6))
    return ArrivedEvent(
        body=body,
        partition_key=annotations.get(PARTITION_KEY),
        properties={name: _to_datetime(value) for name, value in application.items()},
        partition=partition,
        sequence_number=annotations["x-opt-sequence-number"],
        enqueued_time=_to_datetime(annotations["x-opt-enqueued-time"]),
        message_id=message_id,
        correlation_id=correlation_id,
        content_type=content_type,
    )


def _to_datetime(value: Any) -> Any:
    return datetime.fromtimestamp(value / 1000, timezone.utc) if isinstance(value, Timestamp) else value
