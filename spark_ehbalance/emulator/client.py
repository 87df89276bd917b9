"""The TCP connection of one client: its socket, timers, tokens, and the endpoints of its links."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import cast

from spark_ehbalance.emulator import management, service_errors
from spark_ehbalance.emulator.addresses import entity_path, parse_entity
from spark_ehbalance.emulator.amqp.connection import Connection
from spark_ehbalance.emulator.amqp.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    AmqpError,
)
from spark_ehbalance.emulator.amqp.frames import EMPTY_FRAME, Attach, terminus
from spark_ehbalance.emulator.amqp.session import Endpoint, IncomingLink, Link, OutgoingLink
from spark_ehbalance.emulator.broker import Broker
from spark_ehbalance.emulator.cbs import Tokens
from spark_ehbalance.emulator.endpoints import (
    HubEndpoint,
    PublisherEndpoint,
    ReaderEndpoint,
    RequestEndpoint,
    ResponseEndpoint,
)
from spark_ehbalance.emulator.message import Response, Sections
from spark_ehbalance.emulator.service_errors import service_error
from spark_ehbalance.emulator.settings import Settings

_log = logging.getLogger(__name__)

_CONTAINER = "ehbalance-emulator"
_WRITE_BUFFER = 1 << 20  # bytes buffered for a slow client before its links stop sending
_LINGER = 1.0  # seconds in which a client can still read why its connection was closed
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 seconds: closing the socket then resets the connection
_ids = itertools.count(1)


class Client(Connection, asyncio.Protocol):
    """Moves bytes between the socket and the AMQP protocol, and authorizes the client."""

    def __init__(self, settings: Settings, broker: Broker, clients: set[Client]) -> None:
        """`clients` is the set of connected clients. This client adds itself when it connects, and removes itself when
        it disconnects."""
        super().__init__(_CONTAINER, settings.idle_timeout)
        self._settings = settings
        self._broker = broker
        self._clients = clients
        self._tokens = Tokens(settings.sas_keys)
        self._nodes: dict[str, Callable[[Sections], Response]] = {
            "$cbs": lambda request: self._tokens.put(request, broker.faults.token_life, broker.check_path),
            "$management": lambda request: management.answer(request, broker, self._tokens),
        }
        self._id = next(_ids)
        self._silent = False  # an injected fault: the emulator never responds
        self._last_received = self._last_frame = time.monotonic()  # heartbeats do not count as frames
        self._echo_sent = False  # a response was requested since the last frame
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        faults = self._broker.faults
        self._silent = faults.refuse_connections or faults.silence_connections
        if faults.refuse_connections:
            self.drop()
        else:
            self._clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        if self._heartbeat:
            self._heartbeat.cancel()
        self._clients.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.closed or self._silent:
            return
        self._last_received = time.monotonic()
        if data != EMPTY_FRAME:
            self._last_frame, self._echo_sent = self._last_received, False
        try:
            self.receive_data(data)
        except Exception:
            _log.exception("internal error, closing the connection: connection=%d", self._id)
            self.close(AmqpError(INTERNAL_ERROR, "The emulator could not process the last frame."))
        self.flush()
        if self.closed:
            self._end()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if not self.closed:
            for link in list(self.links):
                link.endpoint.on_capacity()
            self.flush()

    # --- called by the AMQP protocol

    def on_open(self, heartbeat_interval: float | None) -> None:
        if len(self._clients) > self._settings.max_connections:
            raise service_error(service_errors.TOO_MANY_CONNECTIONS)
        if heartbeat_interval is not None:
            self._send_heartbeats(heartbeat_interval)

    def _send_heartbeats(self, interval: float) -> None:
        if self.writable:  # otherwise bytes are pending, so no heartbeat is needed
            self.write(EMPTY_FRAME)
            self.flush()
        self._heartbeat = asyncio.get_running_loop().call_later(interval, self._send_heartbeats, interval)

    def make_endpoint(self, link: Link, attach: Attach) -> Endpoint:
        reads = isinstance(link, OutgoingLink)
        address, _ = terminus(attach.source if reads else attach.target)
        if not address:
            raise AmqpError(NOT_ALLOWED, "The attach does not contain an address.")
        path = entity_path(address)
        node = path.lower().rpartition("/")[2]
        if node in self._nodes:
            if isinstance(link, OutgoingLink):
                return ResponseEndpoint(link, attach, node, self._settings.idle_timeout / 4)
            return RequestEndpoint(link, node, self._nodes[node])
        if not self._tokens.allow(path.lower()):
            raise service_error(service_errors.UNAUTHORIZED, claim="Listen" if reads else "Send", path=path)
        entity = parse_entity(address)
        hub = self._broker.enabled_hub(entity.hub, path)
        hub.faults.check_busy(hub.name)
        if isinstance(link, IncomingLink):
            return PublisherEndpoint(link, hub, entity)
        link.settled = self._settings.settled
        return ReaderEndpoint(link, attach, hub, entity)

    def on_error(self, error: AmqpError) -> None:
        _log.warning("connection closed: connection=%d reason=%s", self._id, error)

    def flush(self) -> None:
        data = self.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    # --- called by the server

    def hub_endpoints(self) -> Iterator[HubEndpoint]:
        return (link.endpoint for link in list(self.links) if isinstance(link.endpoint, HubEndpoint))

    def drop(self) -> None:
        """Reset the TCP connection immediately, without sending a reason."""
        with contextlib.suppress(OSError):  # the connection is closed
            socket_ = self._transport.get_extra_info("socket")
            if socket_ is not None:  # with TLS, it is None if the connection is closed
                socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def check_timeouts(self) -> None:
        """Request a frame from a silent client, and later close its connection; detach links whose token has
        expired."""
        if self.closed or self._silent:
            return
        now, limit = time.monotonic(), self._settings.idle_timeout
        if now - self._last_received > limit:
            text = (
                f"The connection was inactive for more than the allowed {round(limit * 1000)} milliseconds and is "
                f"closed by container '{_CONTAINER}'."
            )
            self.close(AmqpError(CONNECTION_FORCED, text))
            self._end()
        elif now - self._last_frame > limit * 3 / 4 and not self._echo_sent:
            self._echo_sent = True
            for session in self.sessions():
                session.write_flow(echo=True)
            self.flush()
        for endpoint in self.hub_endpoints():
            if not self._tokens.allow(endpoint.path):
                endpoint.detach(service_error(service_errors.TOKEN_EXPIRED, claim=endpoint.claim, path=endpoint.path))

    def _end(self) -> None:
        """Send the last bytes and close the socket."""
        self.flush()
        # keep the socket open for a while, because a reset could discard the reason before the client reads it
        with contextlib.suppress(OSError):  # the client may have disconnected
            if self._transport.can_write_eof():
                self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)
