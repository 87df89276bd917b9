"""One AMQP message, in whatever way it is encoded: the general way, which takes 4 to 8 µs an event."""

from __future__ import annotations

from typing import Any

from spark_ehbalance.hub.rows import NUMBER, Event, sequence_body, value_body
from spark_ehbalance.hub.wire.values import DECODERS, MALFORMED, MalformedError, decode

ANNOTATIONS, PROPERTIES, APPLICATION, DATA = range(0x72, 0x76)
_SEQUENCE, _VALUE = 0x76, 0x77
_REPEATED = frozenset((DATA, _SEQUENCE))

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
    found: dict[int, Any] = {}
    pos, end = 0, len(message)
    try:
        while pos < end:
            section, value, pos = read_section(message, pos)
            if section in _REPEATED:
                found.setdefault(section, []).append(value)
            else:
                found[section] = value
        system = pairs(found.get(ANNOTATIONS))
        if PROPERTIES in found:
            system = {**properties(found[PROPERTIES]), **system}
        if not isinstance(system.get(NUMBER), int):
            raise MalformedError("an event has come without a sequence number")
        return Event(_body(found), system, pairs(found[APPLICATION]) if APPLICATION in found else {})
    except MALFORMED as error:
        raise MalformedError(f"an event that is no sound AMQP message: {error}") from error


def read_section(message: bytes, pos: int) -> tuple[int, Any, int]:
    """Code and value of the section at `pos`, and where it ends. Raises one of `MALFORMED`."""
    if message.startswith(b"\x00\x53", pos):
        section, pos = message[pos + 2], pos + 3
    elif message[pos]:
        raise ValueError("a section has no descriptor")
    else:
        section, pos = decode(message, pos + 1)
        if not isinstance(section, int):
            raise ValueError("a section's descriptor is no number")
    value, pos = DECODERS[message[pos]](message, pos + 1)
    return section, value, pos


def properties(fields: Any) -> dict[Any, Any]:
    """The message properties that say something, as the client names them; it leaves out a zero and an empty text."""
    if not isinstance(fields, list) or len(fields) > len(_FIELDS):
        raise ValueError("the properties section is no list of its fields")
    return {name: value for name, value in zip(_FIELDS, fields, strict=False) if value}


def pairs(value: Any) -> dict[Any, Any]:
    """The pairs of an annotations or application-properties section."""
    if not isinstance(value, dict):
        raise ValueError("a section of pairs is no map")
    return value


def _body(found: dict[int, Any]) -> bytes:
    if DATA in found:
        return b"".join(found[DATA])
    return sequence_body(found[_SEQUENCE]) if _SEQUENCE in found else value_body(found.get(_VALUE))
