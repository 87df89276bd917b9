"""The TCP connection of one client: its socket, its timers, and what serves each of its links."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
import time
from typing import Protocol, cast

from .amqp import events
from .amqp.connection import Connection
from .amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, RESOURCE_LIMIT, UNAUTHORIZED, AmqpError
from .amqp.link import Link

_log = logging.getLogger(__name__)

_WRITE_BUFFER = 1 << 20  # bytes that may wait for a slow client before its links stop sending
WRITE_LIMIT = 8 << 20  # bytes that may wait before nothing more is read from the client either
_MAX_LINKS = 5000  # as many as channels, of which clients take one for each link
_LINGER = 1.0  # seconds for the client to read why it was closed
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing resets
_ids = itertools.count(1)


class LinkEndpoint:
    """What serves one link. Subclasses react to the events of the link; all methods run on the server's loop."""

    #: The entity that a token must cover, in lower case; None if the link needs no token.
    path: str | None = None

    def __init__(self, connection: ClientConnection, link: Link) -> None:
        self.connection = connection
        self.link = link
        #: On the monotonic clock: when the client last sent something or asked for something, or got a message.
        self.last_active = time.monotonic()

    def detach(self, error: AmqpError | None = None) -> None:
        """End the link and send the client the reason; ignored if it has ended."""
        self.connection.detach(self, error)

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """The client has sent a message. Raises DecodeError if it is malformed, which closes the connection."""

    def on_room(self) -> None:
        """The client may take more messages than before."""

    def on_detached(self) -> None:
        """Release what the endpoint holds; called once, for whatever reason the link has ended."""


class Application(Protocol):
    """What is behind the connections. Times in seconds."""

    handshake_timeout: float
    idle_timeout: float

    def connected(self, connection: ClientConnection) -> bool:
        """A client has connected. Returns whether it is ever answered."""

    def opened(self, connection: ClientConnection) -> None:
        """The client has opened the AMQP connection. Raises AmqpError to refuse it."""

    def disconnected(self, connection: ClientConnection) -> None:
        """The TCP connection has ended."""

    def authenticate(self, connection: ClientConnection, mechanism: str, response: bytes) -> bool:
        """Whether the client may continue after SASL."""

    def create_endpoint(self, connection: ClientConnection, link: Link) -> LinkEndpoint:
        """Create what serves a link that the client asks for. Raises AmqpError to refuse the link."""


class ClientConnection(asyncio.Protocol):
    """Moves bytes between the socket and the AMQP protocol, and its events to the endpoints of the links.

    `grants` belongs to the application: the paths that the client may use, each with its end in seconds since 1970.
    """

    def __init__(self, application: Application) -> None:
        self.grants: dict[str, float] = {}
        self.endpoints: dict[Link, LinkEndpoint] = {}
        self.writable = True
        self._application = application
        self._amqp = Connection("ehbalance-emulator", application.idle_timeout)
        self._id = next(_ids)
        self._silent = False
        self._last_received = self._connected_at = time.monotonic()
        self._heartbeat: asyncio.TimerHandle | None = None

    @property
    def max_frame_size(self) -> int:
        """The size in bytes of the largest frame that the client takes."""
        return self._amqp.max_frame_size

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._silent = not self._application.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._amqp.close()
        if self._heartbeat:
            self._heartbeat.cancel()
        self._release_endpoints()
        self._application.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._amqp.closed or self._silent:
            return
        self._last_received = time.monotonic()
        try:
            for event in self._amqp.receive_data(data):
                self._handle(event)
        except AmqpError as error:
            self.close(error)
        except Exception:
            _log.exception("connection %d: internal error", self._id)
            self.close(AmqpError(INTERNAL_ERROR, "The emulator could not process the last frame."))
        self.flush()
        if self._transport.get_write_buffer_size() > WRITE_LIMIT:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if not self._amqp.closed:
            self._transport.resume_reading()
            for endpoint in list(self.endpoints.values()):
                endpoint.on_room()
            self.flush()

    # --- what endpoints and the application call

    def flush(self) -> None:
        """Hand the bytes of the protocol to the socket. Call it after every change outside the events of a link."""
        data = self._amqp.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def detach(self, endpoint: LinkEndpoint, error: AmqpError | None) -> None:
        """End one link and send the client the reason; ignored if it has ended."""
        if self.endpoints.pop(endpoint.link, None) is not None:
            endpoint.link.detach(error)
            endpoint.on_detached()
            self.flush()

    def drop(self) -> None:
        """Reset the TCP connection at once; the client gets no reason."""
        with contextlib.suppress(OSError):  # the connection has ended
            socket_ = self._transport.get_extra_info("socket")
            if socket_ is not None:  # with TLS a connection that has ended has none
                socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def close(self, error: AmqpError) -> None:
        """Close the connection and send the client the reason; ignored if it is closed."""
        if not self._amqp.closed:
            self._amqp.close(error)
            self._end(error)

    def check_timeouts(self, now: float) -> None:
        """Drop a client that has been silent for too long; `now` is on the monotonic clock."""
        if self._amqp.closed or self._silent:
            return
        handshake_timeout, idle_timeout = self._application.handshake_timeout, self._application.idle_timeout
        if not self._amqp.opened and now - self._connected_at > handshake_timeout:
            _log.warning("connection %d closed: no open frame within %g s", self._id, handshake_timeout)
            self.drop()
        elif now - self._last_received > idle_timeout:
            limit_ms = round(idle_timeout * 1000)
            text = f"The connection was inactive for more than the allowed {limit_ms} milliseconds and is closed."
            self.close(AmqpError(CONNECTION_FORCED, text))

    # --- what the protocol reports

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.MessageReceived(link, message, message_format, delivery_id):
                if (endpoint := self.endpoints.get(link)) is not None:
                    endpoint.last_active = self._last_received
                    endpoint.on_message(message, message_format, delivery_id)
            case events.CreditChanged(link):
                if (endpoint := self.endpoints.get(link)) is not None:
                    endpoint.last_active = self._last_received
                    endpoint.on_room()
            case events.AttachRequested(link):
                self._attach(link)
            case events.LinkDetached(link):
                if (endpoint := self.endpoints.pop(link, None)) is not None:
                    endpoint.on_detached()
            case events.AuthenticationRequested(mechanism, response):
                self._authenticate(mechanism, response)
            case events.ConnectionOpened(interval):
                self._application.opened(self)
                if interval is not None:
                    self._send_heartbeats(interval)
            case events.SessionFailed(channel, error):
                _log.warning("connection %d: session %d ended: %s", self._id, channel, error)
            case events.ConnectionClosed(error):
                self._end(error)

    def _attach(self, link: Link) -> None:
        try:
            if len(self.endpoints) >= _MAX_LINKS:
                raise AmqpError(RESOURCE_LIMIT, f"A connection may have {_MAX_LINKS} links.")
            self.endpoints[link] = self._application.create_endpoint(self, link)
        except AmqpError as error:
            link.refuse(error)
        else:
            link.accept()

    def _authenticate(self, mechanism: str, response: bytes) -> None:
        passed = self._application.authenticate(self, mechanism, response)
        self._amqp.authenticate(passed)
        if not passed:
            self._end(AmqpError(UNAUTHORIZED, "SASL authentication failed"))

    def _send_heartbeats(self, interval: float) -> None:
        if self.writable:  # else enough bytes wait for the client already
            self._amqp.send_heartbeat()
            self.flush()
        self._heartbeat = asyncio.get_running_loop().call_later(interval, self._send_heartbeats, interval)

    def _end(self, error: AmqpError | None) -> None:
        """The protocol has ended: send the last bytes and close the socket."""
        if error:
            _log.warning("connection %d closed: %s", self._id, error)
        self._release_endpoints()
        self.flush()
        # what the client still sends is read and ignored for a while: a reset would overtake the reason
        with contextlib.suppress(OSError):  # the client may have disconnected
            if self._transport.can_write_eof():
                self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    def _release_endpoints(self) -> None:
        endpoints, self.endpoints = list(self.endpoints.values()), {}
        for endpoint in endpoints:
            endpoint.on_detached()
