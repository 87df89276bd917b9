"""What `Connection.receive_data` yields, and what each event asks of the caller."""

from __future__ import annotations

from typing import NamedTuple

from .errors import AmqpError
from .link import IncomingLink, Link, OutgoingLink


class AuthenticationRequested(NamedTuple):
    """The peer has chosen a SASL mechanism: call `Connection.authenticate`. Nothing more is decoded before that."""

    mechanism: str
    response: bytes


class ConnectionOpened(NamedTuple):
    """The open frames are exchanged. Call `Connection.send_heartbeat` at this interval in seconds; None: never."""

    heartbeat_interval: float | None


class AttachRequested(NamedTuple):
    """The peer asks for a link: call its `accept` or `refuse`."""

    link: Link


class MessageReceived(NamedTuple):
    """A whole message: call `link.settle`. `delivery_id` is None if the peer wants no answer."""

    link: IncomingLink
    message: bytes
    message_format: int
    delivery_id: int | None


class CreditChanged(NamedTuple):
    """The link's `room` may have grown."""

    link: OutgoingLink


class LinkDetached(NamedTuple):
    """The link has ended, and not by the caller's `detach` or `refuse`."""

    link: Link


class SessionFailed(NamedTuple):
    """The peer has broken the rules of a session, which has ended; `LinkDetached` came before for each of its links."""

    channel: int
    error: AmqpError


class ConnectionClosed(NamedTuple):
    """The peer has closed the connection, or broken the rules of the protocol. No event follows for its links.

    Send what `Connection.data_to_send` returns and close the socket.
    """

    error: AmqpError | None


Event = (
    AuthenticationRequested
    | ConnectionOpened
    | AttachRequested
    | MessageReceived
    | CreditChanged
    | LinkDetached
    | SessionFailed
    | ConnectionClosed
)
