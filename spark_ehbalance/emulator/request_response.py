"""Nodes that answer requests: `$cbs` and `$management`, each reached over a pair of links in one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .amqp.codec import Int, Symbol
from .amqp.errors import RESOURCE_LIMIT, AmqpError
from .amqp.frames import ACCEPTED, rejected
from .amqp.link import IncomingLink, OutgoingLink
from .client_connection import ClientConnection, LinkEndpoint
from .message import Response, Sections, build_response, parse_sections

_MAX_RESPONSES = 100  # responses that wait for a client's credit; clients have one request in flight

Handler = Callable[[ClientConnection, Sections], Response]


class ResponseEndpoint(LinkEndpoint):
    """Serves the client's receiver for the responses of a node."""

    link: OutgoingLink

    def __init__(self, connection: ClientConnection, link: OutgoingLink, node: str) -> None:
        super().__init__(connection, link)
        self.node = node
        self._responses: deque[bytes] = deque()

    @property
    def is_full(self) -> bool:
        return len(self._responses) >= _MAX_RESPONSES

    def send(self, response: bytes) -> None:
        """Send a response as soon as the client grants credit."""
        self._responses.append(response)
        self.on_room()

    def on_room(self) -> None:
        while self.link.continue_message() and self._responses and self.link.room:
            self.link.send(self._responses.popleft())
        if not self._responses:
            self.link.finish_drain()


class RequestEndpoint(LinkEndpoint):
    """Serves the client's sender of requests to a node."""

    link: IncomingLink

    def __init__(self, connection: ClientConnection, link: IncomingLink, node: str, handler: Handler) -> None:
        super().__init__(connection, link)
        self._node = node
        self._handler = handler

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Respond on the same session's receiver of this node. Raises DecodeError for malformed requests."""
        request = parse_sections(message)
        receiver = self._receiver()
        if receiver is None or receiver.is_full:
            text = f"There is no receiver for the responses of {self._node} with room for one more."
            self.link.settle(delivery_id, rejected(AmqpError(RESOURCE_LIMIT, text)))
            return
        self.link.settle(delivery_id, ACCEPTED)
        response = self._handler(self.connection, request)
        message_id = request.properties[0] if request.properties else None
        # $cbs and $management, and clients of different ages, use different names
        application: dict[str, Any] = {
            "status-code": Int(response.status),
            "statusCode": Int(response.status),
            "status-description": response.description,
            "statusDescription": response.description,
        }
        if response.condition is not None:
            application["error-condition"] = Symbol(response.condition)
        receiver.send(build_response(message_id, application, response.value))

    def _receiver(self) -> ResponseEndpoint | None:
        return next(
            (
                endpoint
                for endpoint in self.connection.endpoints.values()
                if isinstance(endpoint, ResponseEndpoint)
                and endpoint.node == self._node
                and endpoint.link.channel is self.link.channel
            ),
            None,
        )
