"""The operations on an emulator for administrators and tests, whether it runs in this process or in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any

_EVENTS_PER_CALL = 1000  # a call blocks the server, for about 5 ms at this size
_COPIES_PER_CALL = 10_000  # likewise; copies are not sent and are encoded once


@dataclass(frozen=True)
class PartitionState:
    """The state of a partition. It is empty if the first retained and the next sequence number are equal.

    `last_offset` is "-1" and `last_enqueued_ms` (milliseconds since 1970) is None before the first event.
    """

    first_sequence_number: int
    next_sequence_number: int
    last_offset: str
    last_enqueued_ms: int | None
    bytes_held: int

    @property
    def last_sequence_number(self) -> int:
        """-1 before the first event."""
        return self.next_sequence_number - 1

    @property
    def last_enqueued_time(self) -> datetime | None:
        """In UTC."""
        return (
            None
            if self.last_enqueued_ms is None
            else datetime.fromtimestamp(self.last_enqueued_ms / 1000, timezone.utc)
        )


class Administration(ABC):
    """Every call takes effect before it returns. It raises ValueError for an unknown or invalid hub or partition."""

    @abstractmethod
    def _invoke(self, call: str, **arguments: Any) -> Any:
        """Have the server execute `call`."""

    def add_hub(self, name: str, partitions: int) -> None:
        """Create a hub, or extend an existing one to that number of partitions."""
        self._invoke("add_hub", name=name, partitions=partitions)

    def delete_hub(self, name: str) -> None:
        """Delete a hub and its events, and detach its links."""
        self._invoke("delete_hub", name=name)

    def add_partitions(self, hub: str, count: int) -> None:
        """Give a hub `count` more partitions."""
        self._invoke("add_partitions", hub=hub, count=count)

    def add_consumer_group(self, hub: str, name: str) -> None:
        """Create a consumer group, if it does not exist."""
        self._invoke("add_consumer_group", hub=hub, name=name)

    def delete_consumer_group(self, hub: str, name: str) -> None:
        """Delete a consumer group, and detach its readers. $Default cannot be deleted."""
        self._invoke("delete_consumer_group", hub=hub, name=name)

    def disable_hub(self, name: str, disable: bool = True) -> None:
        """Refuse whoever sends to a hub, reads it or asks for its properties, until called with False. Detaches its
        links."""
        self._invoke("disable_hub", name=name, disable=disable)

    def trim(self, hub: str, partition: str | int, before_sequence_number: int) -> None:
        """Delete the events before a sequence number, as retention does."""
        self._invoke("trim", hub=hub, partition=str(partition), before_sequence_number=before_sequence_number)

    def compact(self, hub: str, partition: str | int, start: int, end: int) -> None:
        """Leave out the events from `start` to before `end`, as compaction does."""
        self._invoke("compact", hub=hub, partition=str(partition), start=start, end=end)

    def promote(self, hub: str, lost: int | Mapping[str | int, int] = 0, *, lost_offsets: str = "resume") -> None:
        """Have a secondary region take over a geo-replicated hub, by force if the last `lost` events of each partition
        (or those of some, by partition) were not replicated yet: they are gone, and new ones take their sequence
        numbers. All connections are reset.

        `lost_offsets`: a receiver that then starts at a lost event's offset starts after the promotion (`resume`), is
        refused (`refuse`), or starts by the offset's sequence number (`number`).
        """
        if isinstance(lost, Mapping):
            lost = {str(partition): count for partition, count in lost.items()}
        self._invoke("promote", hub=hub, lost=lost, lost_offsets=lost_offsets)

    def partition_state(self, hub: str, partition: str | int) -> PartitionState:
        """The present state of a partition."""
        return PartitionState(**self._invoke("partition_state", hub=hub, partition=str(partition)))

    def readers(self, hub: str, partition: str | int, group: str = "$Default") -> list[int | None]:
        """The epochs of the readers that are attached to a partition; None for a reader without epoch."""
        epochs: list[int | None] = self._invoke("readers", hub=hub, partition=str(partition), group=group)
        return epochs

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
        bodies, start = list(bodies), 0
        each = properties is not None and not isinstance(properties, Mapping)
        while start < len(bodies):
            part = slice(start, start + _EVENTS_PER_CALL)
            at_once = max(1, _COPIES_PER_CALL // max(1, len(bodies[part])))
            for first in range(0, max(1, copies), at_once):  # the server refuses an invalid number
                self._invoke(
                    "append",
                    hub=hub,
                    partition=str(partition),
                    bodies=bodies[part],
                    properties=list(islice(properties, part.start, part.stop)) if each and properties else properties,
                    partition_key=partition_key,
                    copies=min(at_once, copies - first),
                )
            start = part.stop

    def append_from_kafka(
        self,
        hub: str,
        partition: str | int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Add an event as one that a Kafka client has sent: without body if `value` is None, headers and key binary."""
        self._invoke(
            "append_from_kafka", hub=hub, partition=str(partition), value=value, key=key, headers=dict(headers or {})
        )

    def append_from_iot_hub(
        self,
        hub: str,
        partition: str | int,
        body: bytes,
        device: str,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event as an IoT Hub passes it on from a device, with its annotations."""
        self._invoke(
            "append_from_iot_hub", hub=hub, partition=str(partition), body=body, device=device, properties=properties
        )

    def connections(self) -> int:
        """The number of open TCP connections."""
        return int(self._invoke("connections"))

    def token_life(self, seconds: float) -> None:
        """Let tokens that are put from now on expire after `seconds`, if not before; 0 ends it."""
        self._invoke("token_life", seconds=seconds)

    def drop_connections(self, hub: str | None = None) -> None:
        """Reset the TCP connections that use a hub, or all connections."""
        self._invoke("drop_connections", hub=hub)

    def detach(
        self,
        hub: str,
        partition: str | int | None = None,
        condition: str = "amqp:link:detach-forced",
        description: str = "The link was detached by the emulator's operator.",
        group: str | None = None,
    ) -> None:
        """Detach the publishers and readers of a hub or partition with an error; with a group, only its readers."""
        partition = None if partition is None else str(partition)
        self._invoke("detach", hub=hub, partition=partition, condition=condition, description=description, group=group)

    def server_busy(self, count: int = 0, seconds: float = 0.0) -> None:
        """Refuse the next `count` attaches, sends, deliveries and requests for properties with
        com.microsoft:server-busy, and all for `seconds`.

        A reader is detached when events are about to be sent to it. Both 0 ends it.
        """
        self._invoke("server_busy", count=count, seconds=seconds)

    def delay(self, seconds: float, hub: str | None = None, partition: str | int | None = None) -> None:
        """Delay deliveries and the answers to sends by `seconds`; 0 ends it. None means every hub or partition."""
        self._invoke("delay", seconds=seconds, hub=hub, partition=None if partition is None else str(partition))

    def pause(self, hub: str, partition: str | int) -> None:
        """Deliver nothing from a partition until `resume`; it can still be sent to."""
        self._invoke("pause", hub=hub, partition=str(partition))

    def resume(self, hub: str, partition: str | int) -> None:
        """End `pause`."""
        self._invoke("resume", hub=hub, partition=str(partition))

    def refuse_connections(self, refuse: bool = True) -> None:
        """Reset every new TCP connection until called with False; open connections are not affected."""
        self._invoke("refuse_connections", refuse=refuse)

    def silence_connections(self, silence: bool = True) -> None:
        """Accept new TCP connections and never answer on them, until called with False; silent ones stay silent."""
        self._invoke("silence_connections", silence=silence)


# the calls that the control port accepts
CALLS = frozenset(name for name in vars(Administration) if not name.startswith("_"))
