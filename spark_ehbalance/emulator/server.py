"""The server: listens, gives each link its counterpart, and carries out what administrators and tests ask for.

Everything here runs on one asyncio loop; `Emulator` calls it from other threads, the control port from other processes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from . import cbs, management
from .addresses import entity_path, parse_entity
from .amqp.connection import Connection
from .amqp.errors import DETACH_FORCED, NOT_ALLOWED, RESOURCE_DELETED, UNAUTHORIZED, AmqpError
from .amqp.frames import Attach, terminus
from .amqp.link import Link
from .amqp.session import Session
from .broker import Broker, HubSpec, tracking
from .faults import Faults
from .message import Sections, build_events
from .publisher import SenderLink
from .reader import ReceiverLink
from .request_response import AnswerLink, Handler, RequestLink, Response

_log = logging.getLogger(__name__)

_TICK = 1.0  # seconds between looks at time-outs, expired tokens and retention
_MAX_GRANTS = 1000  # tokens a connection may hold; a client holds one per hub

_RENEW = "The link is force detached. Code: RenewToken. Details: "  # Azure's words once a link's token is over


@dataclass(frozen=True)
class Settings:
    """How to run the server. Times in seconds unless they are timedeltas; `sas_keys` None takes every token."""

    host: str = "127.0.0.1"
    port: int = 0
    data_directory: Path | None = None
    retention: timedelta = timedelta(days=7)
    consumer_groups: Sequence[str] = ()
    sas_keys: Mapping[str, str] | None = None
    handshake_timeout: float = 20.0
    idle_timeout: float = 240.0
    certificate: Path | None = None

    def __repr__(self) -> str:
        return f"Settings(host={self.host!r}, port={self.port})"  # the keys must not get into a log


class Server:
    """The application behind the connections. Its public methods are for the loop's thread."""

    def __init__(self, settings: Settings) -> None:
        """Open the data directory. Raises LogCorruptError, ValueError for settings that cannot be, OSError."""
        self.handshake_timeout = settings.handshake_timeout
        self.idle_timeout = settings.idle_timeout
        self.port = settings.port
        self._settings = settings
        self._broker = Broker(settings.data_directory, settings.retention, settings.consumer_groups)
        self._faults = Faults()
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._handlers: dict[str, Handler] = {"$cbs": self._put_token, "$management": self._manage}

    async def start(self) -> None:
        """Begin to listen. Raises OSError if the port cannot be had."""
        loop, context = asyncio.get_running_loop(), None
        if self._settings.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._settings.certificate)
        self._listener = await loop.create_server(
            lambda: Connection(self), self._settings.host, self._settings.port, ssl=context
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._ticker = loop.create_task(self._tick())

    async def stop(self) -> None:
        """Close all connections and files."""
        if self._listener:
            self._listener.close()
        if self._ticker:
            self._ticker.cancel()
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)  # lets the connections take note
        self._broker.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                for connection in list(self._connections):
                    connection.check_timeouts(time.monotonic())
                for link in self._links():
                    if not self._may_use(link.session.connection, link.path):
                        refusal = _unauthorized(link.path, isinstance(link, ReceiverLink))
                        link.detach(AmqpError(DETACH_FORCED, f"{_RENEW}{refusal}"))
                self._broker.expire()
            except OSError as error:
                _log.error("cannot drop old events: %s", error)

    # --- what connections ask (amqp.connection.Container)

    def connected(self, connection: Connection) -> bool:
        if self._faults.refuse_connections:
            connection.drop()
            return False
        self._connections.add(connection)
        return not self._faults.silence_connections

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def authenticate(self, connection: Connection, mechanism: str, response: bytes) -> bool:
        if mechanism == "PLAIN":
            if not cbs.check_plain(response, self._settings.sas_keys):
                return False
            connection.grants[""] = math.inf
            return True
        return mechanism in ("ANONYMOUS", "EXTERNAL")

    def create_link(self, session: Session, attach: Attach) -> Link:
        link = self._new_link(session, attach)
        link.accept()
        return link

    def _new_link(self, session: Session, attach: Attach) -> Link:
        receives = attach.role
        address, _ = terminus(attach.source, 11) if receives else terminus(attach.target, 7)
        if not address:
            raise AmqpError(NOT_ALLOWED, "A link must name what it is to be attached to.")
        node = entity_path(address).lower().rpartition("/")[2]
        if node in self._handlers:
            if receives:
                return AnswerLink(session, attach, node)
            return RequestLink(session, attach, node, self._handlers[node])
        if not self._may_use(session.connection, entity_path(address).lower()):
            raise AmqpError(UNAUTHORIZED, _unauthorized(entity_path(address), receives))
        entity = parse_entity(address)
        hub = self._broker.hub(entity.hub)
        self._faults.check_busy()
        if receives:
            return ReceiverLink(session, attach, hub, entity, self._faults)
        return SenderLink(session, attach, self._broker, hub, entity, self._faults)

    def _may_use(self, connection: Connection, path: str) -> bool:
        """Whether a token that covers `path` is still valid; without keys nobody needs one."""
        ends = [expires_at for granted, expires_at in connection.grants.items() if cbs.covers(granted, path)]
        return max(ends) > time.time() if ends else self._settings.sas_keys is None

    def _put_token(self, connection: Connection, request: Sections) -> Response:
        response, grant = cbs.put_token(request, self._settings.sas_keys)
        if grant is not None:
            if len(connection.grants) >= _MAX_GRANTS:
                return Response(403, f"This connection holds {_MAX_GRANTS} tokens already.")
            connection.grants[grant.path] = min(grant.expires_at, time.time() + self._faults.token_life)
        return response

    def _manage(self, connection: Connection, request: Sections) -> Response:
        keys, token = self._settings.sas_keys, request.application.get("security_token")

        def may_read(hub: str) -> bool:
            # Go's client puts a token for "hub/$management" only, and sends the hub's with each request
            return self._may_use(connection, hub) or (keys is not None and cbs.allows(token, keys, hub))

        return management.answer(request, self._broker, lambda hub: may_read(hub.lower()))

    def _links(
        self, hub: str | None = None, partition: str | None = None, group: str | None = None
    ) -> Iterator[SenderLink | ReceiverLink]:
        """The attached senders and receivers that all the names given fit."""
        for connection in list(self._connections):
            for session in list(connection.sessions.values()):
                for link in list(session.links.values()):
                    if (
                        isinstance(link, SenderLink | ReceiverLink)
                        and not link.detached
                        and (hub is None or link.hub.name.lower() == hub.lower())
                        and (partition is None or link.partition == partition)
                        and (group is None or (isinstance(link, ReceiverLink) and link.group.lower() == group.lower()))
                    ):
                        yield link

    # --- what administrators and tests ask (administration.Administration says what each does)

    def add_hub(self, name: str, partitions: int) -> None:
        self._broker.add_hub(HubSpec(name, partitions))

    def delete_hub(self, name: str) -> None:
        hub = self._broker.delete_hub(name)
        text = f"The messaging entity '{hub.name}' has been deleted. {tracking()}"
        for link in self._links(hub.name):
            link.detach(AmqpError(RESOURCE_DELETED, text))

    def add_partitions(self, hub: str, count: int) -> None:
        self._broker.add_partitions(hub, count)

    def add_consumer_group(self, hub: str, name: str) -> None:
        self._broker.add_consumer_group(hub, name)

    def trim(self, hub: str, partition: str, before_sequence_number: int) -> None:
        self._broker.hub(hub).partition(partition).trim(before_sequence_number)

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
        return [link.epoch for link in self._links(hub, partition, group) if isinstance(link, ReceiverLink)]

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

    def connections(self) -> int:
        return len(self._connections)

    def token_life(self, seconds: float) -> None:
        self._faults.token_life = seconds or math.inf

    def drop_connections(self, hub: str | None) -> None:
        named = {link.session.connection for link in self._links(hub)}
        for connection in named if hub is not None else list(self._connections):
            connection.drop()

    def detach(self, hub: str, partition: str | None, condition: str, description: str, group: str | None) -> None:
        for link in self._links(hub, partition, group):
            link.detach(AmqpError(condition, f"{description} {tracking()}"))

    def server_busy(self, count: int, seconds: float) -> None:
        self._faults.server_busy(count, seconds)

    def delay(self, seconds: float, hub: str | None, partition: str | None) -> None:
        self._faults.delay(seconds, hub, partition)

    def pause(self, hub: str, partition: str) -> None:
        self._broker.hub(hub).partition(partition)
        self._faults.pause(hub, partition)

    def resume(self, hub: str, partition: str) -> None:
        self._faults.resume(hub, partition)
        for link in self._links(hub, partition):
            if isinstance(link, ReceiverLink):
                link.on_credit()

    def refuse_connections(self, refuse: bool) -> None:
        self._faults.refuse_connections = refuse

    def silence_connections(self, silence: bool) -> None:
        self._faults.silence_connections = silence


def _unauthorized(path: str, receives: bool) -> str:
    claim = "Listen" if receives else "Send"
    text = f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. Resource: 'sb://{path}'."
    return f"{text} {tracking()}"
