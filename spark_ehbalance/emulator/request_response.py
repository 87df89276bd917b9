"""Nodes that answer requests: `$cbs` and `$management`, each reached over a pair of links in one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .amqp.codec import Int
from .amqp.connection import Connection
from .amqp.errors import RESOURCE_LIMIT, AmqpError
from .amqp.frames import ACCEPTED, Attach, rejected
from .amqp.link import InboundLink, OutboundLink
from .amqp.session import Session
from .message import Sections, build_response, parse_sections

_MAX_ANSWERS = 100  # answers that wait for a peer's credit; clients have one request under way


class Response(NamedTuple):
    """A status as in HTTP, one line of text, and what was asked for."""

    status: int
    description: str
    value: Any = None


Handler = Callable[[Connection, Sections], Response]


class AnswerLink(OutboundLink):
    """The peer's receiver for the answers of a node."""

    def __init__(self, session: Session, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node
        self._answers: deque[bytes] = deque()

    @property
    def is_full(self) -> bool:
        return len(self._answers) >= _MAX_ANSWERS

    def answer(self, message: bytes) -> None:
        """Send an answer as soon as the peer gives credit."""
        self._answers.append(message)
        self.on_credit()

    def on_credit(self) -> None:
        while self.continue_message() and self._answers and self.room:
            self.send(self._answers.popleft())
        if not self._answers:
            self.finish_drain()


class RequestLink(InboundLink):
    """The peer's sender for requests to a node."""

    def __init__(self, session: Session, attach: Attach, node: str, handler: Handler) -> None:
        super().__init__(session, attach)
        self.node = node
        self._handler = handler

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Answer on the same session's receiver of this node. Raises DecodeError for malformed requests."""
        request = parse_sections(message)
        answers = (link for link in self.session.links.values() if isinstance(link, AnswerLink) and not link.detached)
        link = next((link for link in answers if link.node == self.node), None)
        if link is None or link.is_full:
            text = f"There is no receiver for the answers of {self.node} with room for one more."
            self.settle(delivery_id, rejected(AmqpError(RESOURCE_LIMIT, text)))
            return
        self.settle(delivery_id, ACCEPTED)
        response = self._handler(self.session.connection, request)
        message_id = request.properties[0] if request.properties else None
        # $cbs and $management, and clients of different ages, use different names
        application = {
            "status-code": Int(response.status),
            "statusCode": Int(response.status),
            "status-description": response.description,
            "statusDescription": response.description,
        }
        link.answer(build_response(message_id, application, response.value))
