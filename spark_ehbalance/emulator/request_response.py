"""Nodes that answer requests: `$cbs` and `$management`, each reached over a pair of links in one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .amqp.codec import Int, Symbol
from .amqp.errors import RESOURCE_LIMIT, AmqpError
from .amqp.frames import ACCEPTED, rejected
from .amqp.session import Endpoint, IncomingLink, OutgoingLink
from .message import Response, Sections, build_response, parse_sections

_MAX_RESPONSES = 100  # responses that wait for a client's credit; clients have one request in flight


class ResponseEndpoint(Endpoint):
    """Serves the client's receiver for the responses of a node."""

    def __init__(self, link: OutgoingLink, node: str) -> None:
        self.node = node
        self._link = link
        self.responses: deque[bytes] = deque()

    def send(self, response: bytes) -> None:
        """Send a response as soon as the client grants credit."""
        self.responses.append(response)
        self.on_room()

    def on_room(self) -> None:
        while self._link.continue_message() and self.responses and self._link.room:
            self._link.send(self.responses.popleft())
        if not self.responses:
            self._link.finish_drain()


class RequestEndpoint(Endpoint):
    """Serves the client's sender of requests to a node."""

    def __init__(self, link: IncomingLink, node: str, answer: Callable[[Sections], Response]) -> None:
        self._link = link
        self._node = node
        self._answer = answer

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Respond on the same session's receiver of this node. Raises DecodeError for malformed requests."""
        request = parse_sections(message)
        receiver = self._receiver()
        if receiver is None or len(receiver.responses) >= _MAX_RESPONSES:
            text = f"There is no receiver for the responses of {self._node} with room for one more."
            self._link.settle(delivery_id, rejected(AmqpError(RESOURCE_LIMIT, text)))
            return
        self._link.settle(delivery_id, ACCEPTED)
        response = self._answer(request)
        # $cbs and $management, and clients of different ages, use different names
        application: dict[str, Any] = {
            "status-code": Int(response.status),
            "statusCode": Int(response.status),
            "status-description": response.description,
            "statusDescription": response.description,
        }
        if response.condition is not None:
            application["error-condition"] = Symbol(response.condition)
        message_id = request.properties[0] if request.properties else None
        receiver.send(build_response(message_id, application, response.value))

    def _receiver(self) -> ResponseEndpoint | None:
        endpoints = [link.endpoint for link in self._link.session.links()]
        return next(
            (each for each in endpoints if isinstance(each, ResponseEndpoint) and each.node == self._node), None
        )
