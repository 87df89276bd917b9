"""The exceptions of the AMQP layer, and their conditions."""

from __future__ import annotations

CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
DECODE_ERROR = "amqp:decode-error"
INTERNAL_ERROR = "amqp:internal-error"
DETACH_FORCED = "amqp:link:detach-forced"
MESSAGE_SIZE = "amqp:link:message-size-exceeded"
LINK_STOLEN = "amqp:link:stolen"
NOT_ALLOWED = "amqp:not-allowed"
NOT_FOUND = "amqp:not-found"
RESOURCE_DELETED = "amqp:resource-deleted"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
UNAUTHORIZED = "amqp:unauthorized-access"


class AmqpError(Exception):
    """An error to send to the peer. `condition` is an AMQP symbol, and `description` is a line of text."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(AmqpError):
    """The bytes are not valid AMQP 1.0, or exceed a limit of this codec."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)
