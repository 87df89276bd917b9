"""The emulator's endpoints of links: for publishers, for readers, and for requests and their responses."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from spark_ehbalance.emulator.addresses import Entity, start_position
from spark_ehbalance.emulator.amqp.codec import Described, Int, Symbol
from spark_ehbalance.emulator.amqp.errors import NOT_ALLOWED, AmqpError, DecodeError
from spark_ehbalance.emulator.amqp.frames import ACCEPTED, TRANSFER_HEADER_SIZE, Attach, rejected, terminus
from spark_ehbalance.emulator.amqp.session import (
    MAX_MESSAGE_SIZE,
    SETTLED,
    Endpoint,
    IncomingLink,
    Link,
    OutgoingLink,
)
from spark_ehbalance.emulator.broker import Hub
from spark_ehbalance.emulator.message import (
    BATCH_FORMAT,
    EncodedEvent,
    Response,
    Sections,
    build_response,
    parse_batch,
    parse_event,
    parse_sections,
)

_CHUNK_BYTES = 256 * 1024  # per write: large enough to amortize its fixed cost, small enough to be fair to others
_TURN_BYTES = 4 * _CHUNK_BYTES  # sent before other connections are served
_OK = 200  # the only status that is sent without a description


class HubEndpoint(Endpoint):
    """Serves a link on which a client publishes or reads events; all methods run on the server's loop."""

    claim: str  # named in the error if no token is valid for the link
    max_message_size = MAX_MESSAGE_SIZE

    def __init__(self, link: Link, hub: Hub, partition: str | None, path: str) -> None:
        """`path` is the path that a token must cover, in lower case. Raises AmqpError for an unknown partition."""
        if partition is not None:
            hub.partition(partition)
        self.hub = hub
        self.partition = partition
        self.path = path
        self._link = link

    def detach(self, error: AmqpError | None = None) -> None:
        """Detach the link, and send `error` as the reason. Idempotent."""
        self._link.detach(error)
        self._link.session.connection.flush()


class PublisherEndpoint(HubEndpoint):
    """Stores single events and batches for a hub or one of its partitions, and settles each message."""

    claim = "Send"
    _link: IncomingLink

    def __init__(self, link: IncomingLink, hub: Hub, entity: Entity) -> None:
        """Raises AmqpError for an unknown partition, and if the address names a consumer group."""
        if entity.group is not None:
            raise AmqpError(NOT_ALLOWED, "Events cannot be sent to a consumer group.")
        super().__init__(link, hub, entity.partition, hub.name.lower())
        if entity.partition is None:
            self.credit = 300
            self.properties = {Symbol("com.microsoft:tracking-id"): f"{uuid.uuid4().hex.upper()}_G0"}

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Append the events in a message. Raises DecodeError, which closes the connection, if it is malformed."""
        if message_format == BATCH_FORMAT:
            events, partition_key = parse_batch(message)
        else:
            events = [parse_event(message)]
            partition_key = events[0].partition_key
        outcome = ACCEPTED
        partition = self.partition
        try:
            self.hub.faults.check_busy(self.hub.name)
            partition = partition or self.hub.route(partition_key)
            self._append(partition, events, partition_key)
        except AmqpError as error:
            outcome = rejected(error)
        delay = self.hub.faults.delay_for(self.hub.name, partition) if partition else 0.0
        if delay:
            asyncio.get_running_loop().call_later(delay, self._settle_and_flush, delivery_id, outcome)
        else:
            self._link.settle(delivery_id, outcome)

    def _settle_and_flush(self, delivery_id: int | None, outcome: Described) -> None:
        self._link.settle(delivery_id, outcome)
        self._link.session.connection.flush()

    def _append(self, partition: str, events: list[EncodedEvent], partition_key: str | None) -> None:
        if partition_key is not None:
            events = [event._replace(partition_key=partition_key) for event in events]
        self.hub.partition(partition).append(events)


class ReaderEndpoint(HubEndpoint):
    """Sends the events of one partition, from a start position on, as fast as the credit, windows and socket allow."""

    claim = "Listen"
    partition: str
    _link: OutgoingLink

    def __init__(self, link: OutgoingLink, attach: Attach, hub: Hub, entity: Entity) -> None:
        """Admit the reader to its partition. Raises AmqpError if it is refused."""
        if entity.group is None or entity.partition is None:
            raise AmqpError(NOT_ALLOWED, "A receiver must name a consumer group and a partition.")
        self.group = hub.group(entity.group)
        path = f"{hub.name}/consumergroups/{self.group}/partitions/{entity.partition}".lower()
        super().__init__(link, hub, entity.partition, path)
        self._connection = link.session.connection
        self._log = hub.partition(entity.partition)
        properties = attach.properties or {}
        self.epoch: int | None = properties.get("com.microsoft:epoch")
        if not isinstance(self.epoch, int | None):
            raise DecodeError("com.microsoft:epoch is not a number")
        self.name = str(properties.get("com.microsoft:receiver-name") or "nil")[:64]
        self._next = start_position(terminus(attach.source)[1], self._log)
        self._turn: asyncio.Handle | None = None
        hub.admit(self, self.group, entity.partition)

    def on_detached(self) -> None:
        self.hub.readers(self.group, self.partition).remove(self)
        self._log.on_append.discard(self.on_capacity)
        if self._turn:
            self._turn.cancel()

    def on_capacity(self) -> None:
        """Schedule sending, after the injected delay if there is one."""
        if self._turn is None:
            loop = asyncio.get_running_loop()
            delay = self.hub.faults.delay_for(self.hub.name, self.partition)
            self._turn = loop.call_later(delay, self._run_turn) if delay else loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._turn = None
        if self.partition in self.hub.paused:
            return
        try:
            self._send_events()
        except AmqpError as error:
            self.detach(error)
        self._connection.flush()

    def _send_events(self) -> None:
        sent = 0
        while self._connection.writable and self._link.continue_message() and (capacity := self._link.capacity):
            self._next = self._log.next_readable(self._next)
            if self._next >= self._log.next_sequence_number:
                self._link.finish_drain()
                self._log.on_append.add(self.on_capacity)
                return
            self.hub.faults.check_busy(self.hub.name)
            sent += self._send_chunk(capacity)
            self._connection.flush()  # updates `writable`
            if sent >= _TURN_BYTES:
                self.on_capacity()
                return

    def _send_chunk(self, capacity: int) -> int:
        """Send the next events. Returns their size in bytes."""
        if not self._link.settled or self._log.largest_record > self._connection.max_frame_size:
            chunk = self._log.read(self._next, 1, _CHUNK_BYTES)
            self._next += 1
            self._link.send(bytes(chunk.data[TRANSFER_HEADER_SIZE:]))
        else:
            chunk = self._log.read(self._next, capacity, _CHUNK_BYTES)
            self._next += len(chunk.starts) - 1
            self._link.send_records(chunk.data, chunk.starts)
        return len(chunk.data)


class ResponseEndpoint(Endpoint):
    """Serves a link on which a client receives the responses of a request node."""

    def __init__(self, link: OutgoingLink, attach: Attach, node: str, settle_timeout: float) -> None:
        """Responses are sent settled if the client requests that. Otherwise, this side settles each response that the
        client has not settled within `settle_timeout` seconds."""
        self.node = node
        self._link = link
        self._settle_timeout = settle_timeout
        self.responses: deque[bytes] = deque()
        link.settled = attach.snd_settle_mode == SETTLED

    def send(self, response: bytes) -> None:
        """Send a response as soon as the client grants credit."""
        self.responses.append(response)
        self.on_capacity()

    def on_capacity(self) -> None:
        while self._link.continue_message() and self.responses and self._link.capacity:
            delivery_id = self._link.send(self.responses.popleft())
            if not self._link.settled:
                self._link.unsettled.add(delivery_id)
                asyncio.get_running_loop().call_later(self._settle_timeout, self._settle, delivery_id)
        if not self.responses:
            self._link.finish_drain()

    def _settle(self, delivery_id: int) -> None:
        self._link.settle(delivery_id)
        self._link.session.connection.flush()


class RequestEndpoint(Endpoint):
    """Serves a link on which a client sends requests to a node. The responses are sent by the `ResponseEndpoint` in the
    same session."""

    credit = 100

    def __init__(self, link: IncomingLink, node: str, answer: Callable[[Sections], Response]) -> None:
        self._link = link
        self._node = node
        self._answer = answer

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Respond to a request. Raises DecodeError if it is malformed."""
        request = parse_sections(message)
        endpoints = [link.endpoint for link in self._link.session.links()]
        receivers = (
            endpoint for endpoint in endpoints if isinstance(endpoint, ResponseEndpoint) and endpoint.node == self._node
        )
        receiver = next(receivers, None)
        self._link.settle(delivery_id, ACCEPTED)
        if receiver is None:
            return
        response = self._answer(request)
        application: dict[str, Any] = {"status-code": Int(response.status)}
        description = {} if response.status == _OK else {"status-description": response.description}
        if self._node == "$management":
            application = {"operation": request.application.get("operation"), **application}
            if description:  # azure-eventhub reads the description under this name
                description["statusDescription"] = response.description
        application |= description
        if response.condition is not None:
            application["error-condition"] = Symbol(response.condition)
        message_id = request.properties[0] if request.properties else None
        receiver.send(build_response(message_id, application, response.value))
