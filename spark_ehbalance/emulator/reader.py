"""Links on which a client reads the events of a partition."""

from __future__ import annotations

import asyncio
import logging
import time

from .addresses import Entity, start_position
from .amqp.codec import Array, Symbol, Timestamp
from .amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, AmqpError, DecodeError
from .amqp.fast_transfer import HEADER_SIZE
from .amqp.frames import terminus
from .amqp.link import OutgoingLink
from .broker import Hub
from .client_connection import ClientConnection, LinkEndpoint
from .faults import Faults
from .log_segments import LogCorruptError
from .management import NEVER_MS
from .message import with_delivery_annotations

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024  # one write: large enough that its fixed cost does not count, small enough to be fair
_TURN_BYTES = 4 * _CHUNK_BYTES  # after this much, other connections have their turn

_RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


class ReaderEndpoint(LinkEndpoint):
    """Sends the events of one partition from a start position on, as fast as credit, windows and the socket allow."""

    link: OutgoingLink

    def __init__(
        self, connection: ClientConnection, link: OutgoingLink, hub: Hub, entity: Entity, faults: Faults
    ) -> None:
        """Admit the reader to its partition. Raises AmqpError if it may not read there."""
        if entity.group is None or entity.partition is None:
            raise AmqpError(NOT_ALLOWED, "A receiver must name a consumer group and a partition.")
        super().__init__(connection, link)
        self.hub = hub
        self.group = hub.group(entity.group)
        self.partition = entity.partition
        self.path = f"{hub.name}/consumergroups/{self.group}/partitions/{self.partition}".lower()
        self._log = hub.partition(self.partition)
        properties = link.attach.properties or {}
        epoch = properties.get("com.microsoft:epoch")
        if epoch is not None and not isinstance(epoch, int):
            raise DecodeError("com.microsoft:epoch is not a number")
        self.epoch: int | None = epoch
        self.name = str(properties.get("com.microsoft:receiver-name") or "nil")[:64]
        capabilities = link.attach.desired_capabilities
        self._with_metrics = _RUNTIME_METRIC in (capabilities if isinstance(capabilities, Array) else [capabilities])
        self._next = start_position(terminus(link.attach.source, 11)[1], self._log)
        self._faults = faults
        self._turn: asyncio.Handle | None = None
        hub.admit(self, self.group, self.partition)

    def on_detached(self) -> None:
        self.hub.dismiss(self, self.group, self.partition)
        self._log.forget(self.on_room)
        if self._turn:
            self._turn.cancel()

    def on_room(self) -> None:
        """Send in a separate turn of the loop; with an injected delay, later."""
        if self._turn is None:
            loop = asyncio.get_running_loop()
            delay = self._faults.delay_of(self.hub.name, self.partition)
            self._turn = loop.call_later(delay, self._send_turn) if delay else loop.call_soon(self._send_turn)

    def _send_turn(self) -> None:
        self._turn = None
        if self._faults.is_paused(self.hub.name, self.partition):
            return
        try:
            self._send_events()
        except AmqpError as error:
            self.detach(error)
        except (OSError, LogCorruptError) as error:
            _log.error("hub %s, partition %s: cannot read: %s", self.hub.name, self.partition, error)
            self.detach(AmqpError(INTERNAL_ERROR, "The events could not be read."))
        self.connection.flush()

    def _send_events(self) -> None:
        sent = 0
        while self.connection.writable and self.link.continue_message() and (room := self.link.room):
            self._next = self._log.readable(self._next)
            if self._next >= self._log.next_sequence_number:
                self.link.finish_drain()
                self._log.forget(self.on_room)
                self._log.when_appended(self.on_room)
                return
            self._faults.check_busy()
            sent += self._send_some(room)
            self.last_active = time.monotonic()
            self.connection.flush()  # updates `writable`
            if sent >= _TURN_BYTES:
                self.on_room()
                return

    def _send_some(self, room: int) -> int:
        """Send the next events; returns their size in bytes."""
        if self._with_metrics or not self.link.settled or self._log.largest_record > self.connection.max_frame_size:
            chunk = self._log.read(self._next, 1, _CHUNK_BYTES)
            message = bytes(chunk.data[HEADER_SIZE:])
            self._next += 1
            self.link.send(with_delivery_annotations(message, self._metrics()) if self._with_metrics else message)
        else:
            chunk = self._log.read(self._next, room, _CHUNK_BYTES)
            self._next += len(chunk.starts) - 1
            self.link.send_records(chunk.data, chunk.starts)
        return len(chunk.data)

    def _metrics(self) -> dict[Symbol, object]:
        enqueued_ms = self._log.last_enqueued_ms
        return {
            Symbol("last_enqueued_sequence_number"): self._log.next_sequence_number - 1,
            Symbol("last_enqueued_offset"): self._log.last_offset,
            Symbol("last_enqueued_time_utc"): Timestamp(NEVER_MS if enqueued_ms is None else enqueued_ms),
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(time.time_ns() // 1_000_000),
        }
