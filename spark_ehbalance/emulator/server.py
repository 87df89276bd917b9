"""The server: listens, and connects what clients ask for with the broker, `$cbs` and `$management`.

Everything here runs on one asyncio loop; `Emulator` calls it from other threads, the control port from other processes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from . import cbs, management, service_errors
from .addresses import entity_path, parse_entity
from .amqp.errors import NOT_ALLOWED, AmqpError
from .amqp.frames import terminus
from .amqp.link import IncomingLink, Link, OutgoingLink
from .broker import Broker
from .client_connection import ClientConnection, LinkEndpoint
from .faults import Faults
from .message import Response, Sections
from .operations import Operations
from .publisher import PublisherEndpoint
from .reader import ReaderEndpoint
from .request_response import Handler, RequestEndpoint, ResponseEndpoint

_log = logging.getLogger(__name__)

_TICK = 1.0  # seconds between checks of time-outs, expired tokens and retention
_MAX_GRANTS = 1000  # tokens that a connection may hold; a client holds one per hub


@dataclass(frozen=True)
class Settings:
    """How to run the server. Times in seconds unless they are timedeltas; `sas_keys` None accepts every token.

    `Emulator` documents each.
    """

    host: str = "127.0.0.1"
    port: int = 0
    data_directory: Path | None = None
    retention: timedelta = timedelta(days=7)
    consumer_groups: Sequence[str] = ()
    sas_keys: Mapping[str, str] | None = None
    handshake_timeout: float = 20.0
    idle_timeout: float = 240.0
    tls: ssl.SSLContext | None = None
    websocket_port: int | None = None
    max_connections: int = 5000
    management_requests: int | None = 50
    settled: bool = True
    idle_link_timeout: float = 1800.0
    geo_replicated: bool = False

    def __repr__(self) -> str:
        return f"Settings(host={self.host!r}, port={self.port})"  # the keys must not be logged


class Server:
    """The application behind the connections. Its public methods must be called on the loop's thread."""

    def __init__(self, settings: Settings) -> None:
        """Open the data directory. Raises LogCorruptError, ValueError for invalid settings, OSError."""
        self.handshake_timeout = settings.handshake_timeout
        self.idle_timeout = settings.idle_timeout
        self.port = settings.port
        self.websocket_port = settings.websocket_port
        self._settings = settings
        self._broker = Broker(
            settings.data_directory,
            settings.retention,
            settings.consumer_groups,
            geo_replicated=settings.geo_replicated,
        )
        self._faults = Faults()
        self._request_limit = management.RequestLimit(settings.management_requests)
        self._connections: set[ClientConnection] = set()
        self.operations = Operations(self._broker, self._faults, self._connections)
        self._listeners: list[asyncio.Server] = []
        self._ticker: asyncio.Task[None] | None = None
        self._handlers: dict[str, Handler] = {"$cbs": self._put_token, "$management": self._manage}

    async def start(self) -> None:
        """Listen. Raises OSError if a port is not available, ImportError without websockets where it is needed."""
        self.port = await self._listen(lambda: ClientConnection(self), self._settings.port)
        if self._settings.websocket_port is not None:
            from .websocket import WebSocketConnection  # not needed without a websocket

            self.websocket_port = await self._listen(
                lambda: WebSocketConnection(lambda: ClientConnection(self), self.handshake_timeout),
                self._settings.websocket_port,
            )
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def _listen(self, make: Callable[[], asyncio.Protocol], port: int) -> int:
        """Listen on `port`, which is returned; 0 takes a free one."""
        loop, settings = asyncio.get_running_loop(), self._settings
        self._listeners.append(await loop.create_server(make, settings.host, port, ssl=settings.tls))
        bound: int = self._listeners[-1].sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close all connections and files."""
        for listener in self._listeners:
            listener.close()
        if self._ticker:
            self._ticker.cancel()
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)  # asyncio reports the lost connections
        self._broker.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                for connection in list(self._connections):
                    connection.check_timeouts(time.monotonic())
                    self._detach_expired(connection)
                    self._detach_idle(connection)
                self._broker.expire()
            except OSError as error:
                _log.error("cannot delete old events: %s", error)

    def _detach_expired(self, connection: ClientConnection) -> None:
        """Detach the links whose token has expired."""
        for endpoint in list(connection.endpoints.values()):
            if endpoint.path is not None and not self._may_use(connection, endpoint.path):
                reads = isinstance(endpoint.link, OutgoingLink)
                endpoint.detach(service_errors.token_expired(endpoint.path, reads))

    def _detach_idle(self, connection: ClientConnection) -> None:
        """Detach the publishers and readers on whose links nothing has happened for too long."""
        limit = self._settings.idle_link_timeout
        for endpoint in list(connection.endpoints.values()):
            if endpoint.path is not None and time.monotonic() - endpoint.last_active > limit:
                endpoint.detach(service_errors.idle(endpoint.path, isinstance(endpoint.link, OutgoingLink), limit))

    # --- what connections ask (client_connection.Application)

    def connected(self, connection: ClientConnection) -> bool:
        if self._faults.refuse_connections:
            connection.drop()
            return False
        self._connections.add(connection)
        return not self._faults.silence_connections

    def opened(self, connection: ClientConnection) -> None:
        if len(self._connections) > self._settings.max_connections:
            raise service_errors.too_many_connections()

    def disconnected(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)

    def authenticate(self, connection: ClientConnection, mechanism: str, response: bytes) -> bool:
        if mechanism == "PLAIN":
            if not cbs.check_plain(response, self._settings.sas_keys):
                return False
            connection.grants[""] = math.inf
            return True
        return mechanism in ("ANONYMOUS", "EXTERNAL")

    def create_endpoint(self, connection: ClientConnection, link: Link) -> LinkEndpoint:
        reads = isinstance(link, OutgoingLink)
        address, _ = terminus(link.attach.source, 11) if reads else terminus(link.attach.target, 7)
        if not address:
            raise AmqpError(NOT_ALLOWED, "A link must name what it is to be attached to.")
        path = entity_path(address).lower()
        node = path.rpartition("/")[2]
        if node in self._handlers:
            return self._node_endpoint(connection, link, node)
        if not self._may_use(connection, path):
            raise service_errors.unauthorized(entity_path(address), reads)
        return self._hub_endpoint(connection, link, address)

    def _node_endpoint(self, connection: ClientConnection, link: Link, node: str) -> LinkEndpoint:
        if isinstance(link, IncomingLink):
            return RequestEndpoint(connection, link, node, self._handlers[node])
        return ResponseEndpoint(connection, link, node)

    def _hub_endpoint(self, connection: ClientConnection, link: Link, address: str) -> LinkEndpoint:
        entity = parse_entity(address)
        hub = self._broker.open_hub(entity.hub, entity_path(address))
        self._faults.check_busy()
        if isinstance(link, IncomingLink):
            return PublisherEndpoint(connection, link, self._broker, hub, entity, self._faults)
        link.settled = self._settings.settled
        return ReaderEndpoint(connection, link, hub, entity, self._faults)

    def _may_use(self, connection: ClientConnection, path: str) -> bool:
        """Whether a token that covers `path` is valid now; without keys no token is needed."""
        ends = [expires_at for granted, expires_at in connection.grants.items() if cbs.covers(granted, path)]
        return max(ends) > time.time() if ends else self._settings.sas_keys is None

    def _put_token(self, connection: ClientConnection, request: Sections) -> Response:
        response, grant = cbs.put_token(request, self._settings.sas_keys)
        if grant is not None:
            if len(connection.grants) >= _MAX_GRANTS:
                return Response(403, f"This connection holds {_MAX_GRANTS} tokens already.")
            connection.grants[grant.path] = min(grant.expires_at, time.time() + self._faults.token_life)
        return response

    def _manage(self, connection: ClientConnection, request: Sections) -> Response:
        keys, token = self._settings.sas_keys, request.application.get("security_token")

        def may_read(hub: str) -> bool:
            # Go's client puts a token for "hub/$management" only, and sends the hub's with each request
            return self._may_use(connection, hub) or (keys is not None and cbs.allows(token, keys, hub))

        def check(hub: str) -> None:
            self._faults.check_busy()
            self._request_limit.check(hub)

        return management.answer(request, self._broker, lambda hub: may_read(hub.lower()), check)
