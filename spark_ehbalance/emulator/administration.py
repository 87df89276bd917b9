"""The operations on an emulator for administrators and tests, whether it runs in this process or in another."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ParamSpec, TypeVar

from spark_ehbalance.emulator import service_errors as errors
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.broker import Broker, check_hub
from spark_ehbalance.emulator.message import build_events, kafka_event
from spark_ehbalance.emulator.partition_log import PartitionLog
from spark_ehbalance.emulator.server import Server
from spark_ehbalance.emulator.service_errors import service_error

_P = ParamSpec("_P")
_R = TypeVar("_R")

_EVENTS_PER_CALL = 1000  # a call blocks the server, for about 5 ms at this size

_OPERATIONS: dict[str, Callable[..., Any]] = {}


def operation(run: Callable[_P, _R]) -> Callable[_P, _R]:
    """A method of `Administration` whose body runs in the emulator's process, on the server's loop."""
    name = run.__name__.lstrip("_")
    _OPERATIONS[name] = run
    signature = inspect.signature(run)

    @functools.wraps(run)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        arguments = signature.bind(*args, **kwargs).arguments
        result: _R = arguments.pop("self")._invoke(name, arguments)
        return result

    return call


@dataclass(frozen=True)
class PartitionState:
    """The state of a partition. It is empty if the first retained and the next sequence number are equal.

    `last_offset` is "-1" and `last_enqueued_ms` (milliseconds since 1970) is None before the first event.
    """

    first_sequence_number: int
    next_sequence_number: int
    last_offset: str
    last_enqueued_ms: int | None

    @property
    def last_sequence_number(self) -> int:
        """-1 before the first event."""
        return self.next_sequence_number - 1

    @property
    def last_enqueued_time(self) -> datetime | None:
        """In UTC."""
        if self.last_enqueued_ms is None:
            return None
        return datetime.fromtimestamp(self.last_enqueued_ms / 1000, timezone.utc)


class Administration(ABC):
    """Every operation takes effect before it returns. It raises ValueError for an unknown or invalid hub or partition.

    Partitions may be given as numbers.
    """

    @property
    def _server(self) -> Server:
        """The server in this process. Raises RuntimeError if it is not running."""
        raise RuntimeError("the emulator runs in another process")

    @abstractmethod
    def _invoke(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """Have the server run an operation."""

    def _execute(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """Run an operation, on the server's loop. Raises ValueError with one line of text for one that is refused."""
        run = _OPERATIONS.get(call)
        if run is None:
            raise ValueError(f"call {call[:50]!r}: allowed are {', '.join(sorted(_OPERATIONS))}")
        try:
            return run(self, **arguments)
        except AmqpError as error:
            raise ValueError(error.description) from None

    @property
    def _broker(self) -> Broker:
        return self._server.broker

    def _log(self, hub: str, partition: str | int) -> PartitionLog:
        return self._broker.hub(hub).partition(str(partition))

    def _detach(self, error: AmqpError, hub: str, partition: str | int | None = None, group: str | None = None) -> None:
        for _, endpoint in self._server.endpoints(hub, partition, group):
            endpoint.detach(error)

    @operation
    def hubs(self) -> list[str]:
        """The names of all hubs."""
        return self._broker.hubs()

    @operation
    def add_hub(self, name: str, partitions: int) -> None:
        """Create a hub, or extend an existing one to that number of partitions."""
        self._broker.add_hub(name, partitions)

    @operation
    def delete_hub(self, name: str) -> None:
        """Delete a hub and its events, and detach its links."""
        hub = self._broker.delete_hub(name)
        self._detach(service_error(errors.DELETED, entity=hub.name), hub.name)

    @operation
    def add_partitions(self, hub: str, count: int) -> None:
        """Give a hub `count` more partitions."""
        if count < 1:
            raise ValueError(f"{count} more partitions: a hub can only grow")
        found = self._broker.hub(hub)
        check_hub(found.name, len(found.partitions) + count)
        found.extend(count)

    @operation
    def add_consumer_group(self, hub: str, name: str) -> None:
        """Create a consumer group, if it does not exist."""
        self._broker.hub(hub).add_group(name)

    @operation
    def delete_consumer_group(self, hub: str, name: str) -> None:
        """Delete a consumer group, and detach its readers. $Default cannot be deleted."""
        found = self._broker.hub(hub)
        found.delete_group(name)
        self._detach(service_error(errors.DELETED, entity=f"{found.name}|{name}"), found.name, group=name)

    @operation
    def disable_hub(self, name: str, disable: bool = True) -> None:
        """Refuse whoever sends to a hub, reads it or asks for its properties, until called with False. Detaches its
        links."""
        hub = self._broker.hub(name)
        hub.disabled = disable
        if disable:
            self._detach(service_error(errors.DISABLED, hub=hub.name), hub.name)

    @operation
    def trim(self, hub: str, partition: str | int, before_sequence_number: int) -> None:
        """Delete the events before a sequence number, as retention does."""
        self._log(hub, partition).trim(before_sequence_number)

    @operation
    def compact(self, hub: str, partition: str | int, start: int, end: int) -> None:
        """Leave out the events from `start` to before `end`, as compaction does."""
        self._log(hub, partition).remove(start, end)

    @operation
    def promote(self, hub: str, lost: int = 0, *, refuse_lost: bool = False) -> None:
        """Promote a secondary region of a geo-replicated hub that does not have the last `lost` events of each
        partition: new ones take their sequence numbers. Resets all connections.

        A receiver that then starts at a lost event's offset starts by its sequence number, or is refused with
        `refuse_lost`.
        """
        promoted = self._broker.hub(hub)
        for log in promoted.partitions:
            log.promote(lost, refuse_lost)
        promoted.created_at = datetime.now(timezone.utc)  # whether the service keeps it is not known
        for client in list(self._server.clients):
            client.drop()

    def partition_state(self, hub: str, partition: str | int) -> PartitionState:
        """The present state of a partition."""
        return PartitionState(**self._partition_state(hub, partition))

    @operation
    def _partition_state(self, hub: str, partition: str | int) -> dict[str, Any]:
        log = self._log(hub, partition)
        return {name: getattr(log, name) for name in PartitionState.__dataclass_fields__}

    @operation
    def readers(self, hub: str, partition: str | int, group: str = "$Default") -> list[int | None]:
        """The epochs of the readers that are attached to a partition; None for a reader without epoch."""
        return [reader.epoch for reader in self._broker.hub(hub).readers(group, str(partition))]

    def append(
        self,
        hub: str,
        partition: str | int,
        bodies: Sequence[bytes],
        properties: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        partition_key: str | None = None,
        copies: int = 1,
    ) -> None:
        """Add events without a client. `properties` are those of all events, or a sequence with those of each.

        Each thousand of `bodies` is added `copies` times in a row.
        """
        each = None if properties is None or isinstance(properties, Mapping) else list(properties)
        for start in range(0, len(bodies), _EVENTS_PER_CALL):
            part = slice(start, start + _EVENTS_PER_CALL)
            some = properties if each is None else each[part]
            self._append(hub, partition, list(bodies[part]), some, partition_key, copies)

    @operation
    def _append(
        self,
        hub: str,
        partition: str | int,
        bodies: Sequence[bytes],
        properties: Any = None,
        partition_key: str | None = None,
        copies: int = 1,
    ) -> None:
        events = build_events(bodies, properties if isinstance(properties, list) else [properties], partition_key)
        self._log(hub, partition).append(events * copies)

    @operation
    def append_from_kafka(
        self,
        hub: str,
        partition: str | int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Add an event as one that a Kafka client has sent: without body if `value` is None, headers and key binary."""
        self._log(hub, partition).append([kafka_event(value, key, headers or {})])

    @operation
    def connections(self) -> int:
        """The number of open TCP connections."""
        return len(self._server.clients)

    @operation
    def token_life(self, seconds: float) -> None:
        """Let tokens that are put from now on expire after `seconds`, if not before; 0 ends it."""
        self._broker.faults.token_life = seconds or math.inf

    @operation
    def drop_connections(self, hub: str | None = None) -> None:
        """Reset the TCP connections that use a hub, or all connections."""
        using = {client for client, _ in self._server.endpoints(hub)}
        for client in list(self._server.clients) if hub is None else using:
            client.drop()

    @operation
    def detach(
        self,
        hub: str,
        partition: str | int | None = None,
        condition: str = "amqp:link:detach-forced",
        description: str = "The link was detached by the emulator's operator.",
        group: str | None = None,
    ) -> None:
        """Detach the publishers and readers of a hub or partition with an error; with a group, only its readers."""
        self._detach(service_error((condition, "{text}"), text=description), hub, partition, group)

    @operation
    def server_busy(self, count: int = 0, seconds: float = 0.0, hub: str | None = None) -> None:
        """Refuse the next `count` attaches, sends, deliveries and requests for properties with
        com.microsoft:server-busy, and all for `seconds`; those of one hub, or of every hub.

        A reader is detached when events are about to be sent to it. Both 0 ends it.
        """
        self._broker.faults.server_busy(count, seconds, hub)

    @operation
    def delay(self, seconds: float, hub: str | None = None, partition: str | int | None = None) -> None:
        """Delay deliveries and the answers to sends by `seconds`; 0 ends it. None means every hub or partition."""
        self._broker.faults.delay(seconds, hub, None if partition is None else str(partition))

    @operation
    def pause(self, hub: str, partition: str | int) -> None:
        """Deliver nothing from a partition until `resume`; it can still be sent to."""
        self._log(hub, partition)
        self._broker.hub(hub).paused.add(str(partition))

    @operation
    def resume(self, hub: str, partition: str | int) -> None:
        """End `pause`."""
        self._broker.hub(hub).paused.discard(str(partition))
        for _, endpoint in self._server.endpoints(hub, partition):
            endpoint.on_room()

    @operation
    def refuse_connections(self, refuse: bool = True) -> None:
        """Reset every new TCP connection until called with False; open connections are not affected."""
        self._broker.faults.refuse_connections = refuse

    @operation
    def silence_connections(self, silence: bool = True) -> None:
        """Accept new TCP connections and never answer on them, until called with False; silent ones stay silent."""
        self._broker.faults.silence_connections = silence

    @operation
    def clear_faults(self) -> None:
        """End `server_busy`, `delay`, `token_life`, `refuse_connections` and `silence_connections`."""
        self._broker.faults.clear()
