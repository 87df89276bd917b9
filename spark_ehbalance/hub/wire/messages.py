"""One AMQP message, in whatever way it is encoded: the general way, which takes 3 to 8 µs an event."""

from __future__ import annotations

from typing import Any

from spark_ehbalance.hub.rows import NUMBER, Event, sequence_body, value_body
from spark_ehbalance.hub.wire.values import DECODERS, MALFORMED, MalformedError, decode

ANNOTATIONS, PROPERTIES, APPLICATION, DATA = range(0x72, 0x76)
_SEQUENCE, VALUE = 0x76, 0x77

#: The other way to say which section it is.
_BY_NAME = {
    b"amqp:message-annotations:map": ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": _SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
}

#: Names of the fields of the properties section, in their order on the wire.
_FIELDS = (
    b"message-id",
    b"user-id",
    b"to",
    b"subject",
    b"reply-to",
    b"correlation-id",
    b"content-type",
    b"content-encoding",
    b"absolute-expiry-time",
    b"creation-time",
    b"group-id",
    b"group-sequence",
    b"reply-to-group-id",
)


def parse(message: bytes) -> Event:
    """The event that `message` is. Raises `MalformedError`."""
    system: dict[Any, Any] = {}
    standard: dict[Any, Any] = {}
    application: dict[Any, Any] = {}
    data: list[bytes] = []
    sequences: list[Any] = []
    single: Any = None
    pos, end = 0, len(message)
    try:
        while pos < end:
            if message[pos]:
                raise ValueError("a section has no descriptor")
            if message[pos + 1] == 0x53:
                section: Any = message[pos + 2]
                pos += 3
            else:
                section, pos = decode(message, pos + 1)
                section = _BY_NAME.get(section, section)
            value, pos = DECODERS[message[pos]](message, pos + 1)
            if section == DATA:
                data.append(value)
            elif section == ANNOTATIONS:
                system = pairs(value)
            elif section == APPLICATION:
                application = pairs(value)
            elif section == PROPERTIES:
                standard = properties(value)
            elif section == VALUE:
                single = value
            elif section == _SEQUENCE:
                sequences.append(value)
        if not isinstance(system.get(NUMBER), int):
            raise MalformedError("an event has come without a sequence number")
        body = b"".join(data) if data else sequence_body(sequences) if sequences else value_body(single)
        return body, {**standard, **system} if standard else system, application
    except MALFORMED as error:
        raise MalformedError(f"event {system.get(NUMBER, '')} is no sound AMQP message: {error}") from error


def properties(fields: Any) -> dict[Any, Any]:
    """The message properties that say something, as the client names them; it leaves out a zero and an empty text."""
    if not isinstance(fields, list) or len(fields) > len(_FIELDS):
        raise ValueError("the properties section is no list of its fields")
    return {name: value for name, value in zip(_FIELDS, fields, strict=False) if value}


def pairs(value: Any) -> dict[Any, Any]:
    """The pairs of an annotations or application-properties section."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("a section of pairs is no map")
    return value
