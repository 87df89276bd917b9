"""Links on which a client reads the events of a partition."""

from __future__ import annotations

import asyncio
import logging
import time

from .addresses import Entity, start_position
from .amqp.codec import Array, Symbol, Timestamp
from .amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, AmqpError, DecodeError
from .amqp.frames import TRANSFER_HEADER_SIZE, Attach, terminus
from .amqp.session import OutgoingLink
from .broker import Hub
from .faults import Faults
from .hub_endpoint import HubEndpoint
from .management import time_of
from .message import with_delivery_annotations
from .partition_log import LogCorruptError

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024  # one write: large enough that its fixed cost does not count, small enough to be fair
_TURN_BYTES = 4 * _CHUNK_BYTES  # after this much, other connections have their turn

_RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


class ReaderEndpoint(HubEndpoint):
    """Sends the events of one partition from a start position on, as fast as credit, windows and the socket allow."""

    def __init__(self, link: OutgoingLink, attach: Attach, hub: Hub, entity: Entity, faults: Faults) -> None:
        """Admit the reader to its partition. Raises AmqpError if it may not read there."""
        if entity.group is None or entity.partition is None:
            raise AmqpError(NOT_ALLOWED, "A receiver must name a consumer group and a partition.")
        self.group = hub.group(entity.group)
        path = f"{hub.name}/consumergroups/{self.group}/partitions/{entity.partition}".lower()
        super().__init__(link, hub, entity.partition, path, faults)
        self._link = link
        self._output = link.session.output
        self._partition = entity.partition
        self._log = hub.partition(entity.partition)
        properties = attach.properties or {}
        epoch = properties.get("com.microsoft:epoch")
        if epoch is not None and not isinstance(epoch, int):
            raise DecodeError("com.microsoft:epoch is not a number")
        self.epoch: int | None = epoch
        self.name = str(properties.get("com.microsoft:receiver-name") or "nil")[:64]
        capabilities = attach.desired_capabilities
        self._with_metrics = _RUNTIME_METRIC in (capabilities if isinstance(capabilities, Array) else [capabilities])
        self._next = start_position(terminus(attach.source)[1], self._log)
        self._turn: asyncio.Handle | None = None
        hub.admit(self, self.group, entity.partition)

    def on_detached(self) -> None:
        self.hub.readers(self.group, self._partition).remove(self)
        self._log.on_append.discard(self.on_room)
        if self._turn:
            self._turn.cancel()

    def on_room(self) -> None:
        """Send in a separate turn of the loop; with an injected delay, later."""
        self.last_active = time.monotonic()
        if self._turn is None:
            loop = asyncio.get_running_loop()
            delay = self._faults.delay_of(self.hub.name, self._partition)
            self._turn = loop.call_later(delay, self._send_turn) if delay else loop.call_soon(self._send_turn)

    def _send_turn(self) -> None:
        self._turn = None
        if self._faults.is_paused(self.hub.name, self._partition):
            return
        try:
            self._send_events()
        except AmqpError as error:
            self.detach(error)
        except (OSError, LogCorruptError) as error:
            _log.error("hub %s, partition %s: cannot read: %s", self.hub.name, self.partition, error)
            self.detach(AmqpError(INTERNAL_ERROR, "The events could not be read."))
        self._output.flush()

    def _send_events(self) -> None:
        sent = 0
        while self._output.writable and self._link.continue_message() and (room := self._link.room):
            self._next = self._log.readable(self._next)
            if self._next >= self._log.next_sequence_number:
                self._link.finish_drain()
                self._log.on_append.add(self.on_room)
                return
            self._faults.check_busy()
            sent += self._send_some(room)
            self.last_active = time.monotonic()
            self._output.flush()  # updates `writable`
            if sent >= _TURN_BYTES:
                self.on_room()
                return

    def _send_some(self, room: int) -> int:
        """Send the next events; returns their size in bytes."""
        if self._with_metrics or not self._link.settled or self._log.largest_record > self._output.max_frame_size:
            chunk = self._log.read(self._next, 1, _CHUNK_BYTES)
            message = bytes(chunk.data[TRANSFER_HEADER_SIZE:])
            self._next += 1
            self._link.send(with_delivery_annotations(message, self._metrics()) if self._with_metrics else message)
        else:
            chunk = self._log.read(self._next, room, _CHUNK_BYTES)
            self._next += len(chunk.starts) - 1
            self._link.send_records(chunk.data, chunk.starts)
        return len(chunk.data)

    def _metrics(self) -> dict[Symbol, object]:
        return {
            Symbol("last_enqueued_sequence_number"): self._log.next_sequence_number - 1,
            Symbol("last_enqueued_offset"): self._log.last_offset,
            Symbol("last_enqueued_time_utc"): time_of(self._log.last_enqueued_ms),
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(time.time_ns() // 1_000_000),
        }
