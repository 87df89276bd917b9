"""Links on which a client publishes events."""

from __future__ import annotations

import asyncio
import logging
import time

from .addresses import Entity
from .amqp.codec import Described
from .amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, AmqpError
from .amqp.frames import ACCEPTED, rejected
from .amqp.session import IncomingLink
from .broker import Hub
from .faults import Faults
from .hub_endpoint import HubEndpoint
from .message import BATCH_FORMAT, PUBLISHER, Event, parse_batch, parse_event

_log = logging.getLogger(__name__)


class PublisherEndpoint(HubEndpoint):
    """Takes single events and batches for a hub or for one of its partitions, and settles each message."""

    def __init__(self, link: IncomingLink, hub: Hub, entity: Entity, faults: Faults) -> None:
        """Raises AmqpError if the hub has no such partition, or if the address is not one to send to."""
        if entity.group is not None:
            raise AmqpError(NOT_ALLOWED, "Events cannot be sent to a consumer group.")
        super().__init__(link, hub, entity.partition, hub.name.lower(), faults)
        self._link = link
        self._publisher = entity.publisher

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Append the events of a message. Raises DecodeError for malformed messages: those close the connection."""
        self.last_active = time.monotonic()
        if message_format == BATCH_FORMAT:
            events, partition_key = parse_batch(message)
        else:
            events = [parse_event(message)]
            partition_key = events[0].partition_key
        outcome = ACCEPTED
        partition = self.partition
        try:
            self._faults.check_busy()
            partition = partition or self.hub.route(partition_key or self._publisher)
            self._append(partition, events, partition_key)
        except AmqpError as error:
            outcome = rejected(error)
        delay = self._faults.delay_of(self.hub.name, partition) if partition else 0.0
        if delay:
            asyncio.get_running_loop().call_later(delay, self._settle_late, delivery_id, outcome)
        else:
            self._link.settle(delivery_id, outcome)

    def _settle_late(self, delivery_id: int | None, outcome: Described) -> None:
        self._link.settle(delivery_id, outcome)
        self._link.session.output.flush()

    def _append(self, partition: str, events: list[Event], partition_key: str | None) -> None:
        if partition_key is not None:
            events = [event._replace(partition_key=partition_key) for event in events]
        if self._publisher is not None:
            events = [event.annotated(PUBLISHER, self._publisher) for event in events]
        try:
            self.hub.partition(partition).append(events)
        except OSError as error:
            _log.error("hub %s, partition %s: cannot append: %s", self.hub.name, partition, error)
            raise AmqpError(INTERNAL_ERROR, "The events could not be stored.") from error
