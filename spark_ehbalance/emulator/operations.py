"""What administrators and tests ask of a running server (`administration.Administration` documents each operation)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime, timezone
from typing import Any

from . import service_errors
from .broker import Broker, HubSpec
from .client_connection import ClientConnection
from .faults import Faults
from .geo_replication import LostOffsets
from .message import Event, build_events, iot_hub_event, kafka_event
from .publisher import PublisherEndpoint
from .reader import ReaderEndpoint


class Operations:
    """Carries out operations on the server's loop. Raises AmqpError or ValueError for what cannot be done."""

    def __init__(self, broker: Broker, faults: Faults, connections: Set[ClientConnection]) -> None:
        """`connections` are those that are open, kept up to date by the caller."""
        self._broker = broker
        self._faults = faults
        self._connections = connections

    def _endpoints(
        self, hub: str | None = None, partition: str | None = None, group: str | None = None
    ) -> Iterator[PublisherEndpoint | ReaderEndpoint]:
        """The attached publishers and readers that match all given names."""
        for connection in list(self._connections):
            for endpoint in list(connection.endpoints.values()):
                if (
                    isinstance(endpoint, PublisherEndpoint | ReaderEndpoint)
                    and (hub is None or endpoint.hub.name.lower() == hub.lower())
                    and (partition is None or endpoint.partition == partition)
                    and (group is None or _reads_in(endpoint, group))
                ):
                    yield endpoint

    def add_hub(self, name: str, partitions: int) -> None:
        self._broker.add_hub(HubSpec(name, partitions))

    def delete_hub(self, name: str) -> None:
        hub = self._broker.delete_hub(name)
        for endpoint in self._endpoints(hub.name):
            endpoint.detach(service_errors.deleted(hub.name))

    def add_partitions(self, hub: str, count: int) -> None:
        self._broker.add_partitions(hub, count)

    def add_consumer_group(self, hub: str, name: str) -> None:
        self._broker.add_consumer_group(hub, name)

    def delete_consumer_group(self, hub: str, name: str) -> None:
        found = self._broker.delete_consumer_group(hub, name)
        for endpoint in self._endpoints(found.name, group=name):
            endpoint.detach(service_errors.deleted(f"{found.name}|{name}"))

    def disable_hub(self, name: str, disable: bool) -> None:
        hub = self._broker.hub(name)
        hub.disabled = disable
        for endpoint in self._endpoints(hub.name) if disable else ():
            endpoint.detach(service_errors.disabled(hub.name))

    def trim(self, hub: str, partition: str, before_sequence_number: int) -> None:
        self._broker.hub(hub).partition(partition).trim(before_sequence_number)

    def compact(self, hub: str, partition: str, start: int, end: int) -> None:
        self._broker.hub(hub).partition(partition).remove(start, end)

    def promote(self, hub: str, lost: int | Mapping[str, int], lost_offsets: str) -> None:
        promoted, behaviour = self._broker.hub(hub), LostOffsets(lost_offsets)
        counts = lost if isinstance(lost, Mapping) else {str(index): lost for index in range(len(promoted.partitions))}
        for partition in counts:
            promoted.partition(partition)
        for index, log in enumerate(promoted.partitions):
            log.promote(counts.get(str(index), 0))
            if log.replicated is not None:
                log.replicated.lost_offsets = behaviour
        promoted.created_at = datetime.now(timezone.utc)  # whether the service keeps it is not known
        promoted.save()
        self.drop_connections(None)

    def partition_state(self, hub: str, partition: str) -> dict[str, Any]:
        log = self._broker.hub(hub).partition(partition)
        return {
            "first_sequence_number": log.first_sequence_number,
            "next_sequence_number": log.next_sequence_number,
            "last_offset": log.last_offset,
            "last_enqueued_ms": log.last_enqueued_ms,
            "bytes_held": log.bytes_held,
        }

    def readers(self, hub: str, partition: str, group: str) -> list[int | None]:
        endpoints = self._endpoints(hub, partition, group)
        return [endpoint.epoch for endpoint in endpoints if isinstance(endpoint, ReaderEndpoint)]

    def append(
        self,
        hub: str,
        partition: str,
        bodies: Sequence[bytes],
        properties: Any = None,
        partition_key: str | None = None,
        copies: int = 1,
    ) -> None:
        if copies < 1:
            raise ValueError(f"copies={copies}: allowed are numbers from 1 on")
        events = build_events(bodies, properties if isinstance(properties, list) else [properties], partition_key)
        self._broker.append(self._broker.hub(hub), partition, events * copies)

    def append_from_kafka(
        self, hub: str, partition: str, value: bytes | None, key: bytes | None, headers: dict[str, bytes]
    ) -> None:
        self._broker.append(self._broker.hub(hub), partition, [kafka_event(value, key, headers)])

    def append_from_iot_hub(self, hub: str, partition: str, body: bytes, device: str, properties: Any) -> None:
        self._broker.append(self._broker.hub(hub), partition, [iot_hub_event(body, device, properties)])

    def append_encoded(self, hub: str, partition: str, events: Sequence[Event]) -> None:
        """Store `events` as they are, also such as no sender could send."""
        self._broker.append(self._broker.hub(hub), partition, events)

    def connections(self) -> int:
        return len(self._connections)

    def token_life(self, seconds: float) -> None:
        self._faults.token_life = seconds or math.inf

    def drop_connections(self, hub: str | None) -> None:
        using = {endpoint.connection for endpoint in self._endpoints(hub)}
        for connection in using if hub is not None else list(self._connections):
            connection.drop()

    def detach(self, hub: str, partition: str | None, condition: str, description: str, group: str | None) -> None:
        for endpoint in self._endpoints(hub, partition, group):
            endpoint.detach(service_errors.service_error(condition, description))

    def server_busy(self, count: int, seconds: float) -> None:
        self._faults.server_busy(count, seconds)

    def delay(self, seconds: float, hub: str | None, partition: str | None) -> None:
        self._faults.delay(seconds, hub, partition)

    def pause(self, hub: str, partition: str) -> None:
        self._broker.hub(hub).partition(partition)
        self._faults.pause(hub, partition)

    def resume(self, hub: str, partition: str) -> None:
        self._faults.resume(hub, partition)
        for endpoint in self._endpoints(hub, partition):
            endpoint.on_room()

    def refuse_connections(self, refuse: bool) -> None:
        self._faults.refuse_connections = refuse

    def silence_connections(self, silence: bool) -> None:
        self._faults.silence_connections = silence


def _reads_in(endpoint: PublisherEndpoint | ReaderEndpoint, group: str) -> bool:
    return isinstance(endpoint, ReaderEndpoint) and endpoint.group.lower() == group.lower()
