"""One AMQP message, in whatever way it is encoded: the general way, which takes 3 to 8 µs an event."""

from __future__ import annotations

import struct
from typing import Any

from spark_ehbalance.hub.rows import (
    COLUMN_ANNOTATIONS,
    Event,
    UnreadableError,
    check,
    data_body,
    sequence_body,
    value_body,
)
from spark_ehbalance.hub.wire.values import MALFORMED, TEXTS, Room, decode, end_of

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

#: Elements without bytes of their own that a message may have beyond its bytes: a few small arrays, of 255 at the most.
_SMALL_ARRAYS = 4 * 255

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
    """The event that `message` is. Raises `UnreadableError`."""
    system: dict[Any, Any] = {}
    standard: dict[Any, Any] = {}
    application: dict[Any, Any] = {}
    data: list[bytes | None] = []
    sequences: list[Any] = []
    single: Any = None
    pos, end, room = 0, len(message), Room(len(message) + _SMALL_ARRAYS)
    try:
        while pos < end:
            if message[pos] == 0 and message[pos + 1] == 0x53:
                section, pos = message[pos + 2], pos + 3
            else:
                section, pos = _descriptor(message, pos)
            code = message[pos]
            if section == DATA and code & 0xEF == 0xA0:
                raw, pos = TEXTS[code](message, pos + 1)  # a body is not copied to say that it is binary
                data.append(raw)
                continue
            value, pos = decode(message, pos, room)
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
        check(system)
        body = data_body(data) if data else sequence_body(sequences) if sequences else value_body(single)
        return body, {**standard, **system} if standard else system, application
    except MALFORMED as error:
        cut = isinstance(error, (IndexError, struct.error))
        reason = "it is no sound AMQP message: " + ("it is cut off" if cut else str(error))
        raise UnreadableError(reason, system or _annotations(message)) from error


def _descriptor(message: bytes, pos: int) -> tuple[Any, int]:
    """Which section begins at `pos`, and where its value does."""
    if message[pos]:
        raise ValueError("a section has no descriptor")
    if message[pos + 1] == 0x53:
        return message[pos + 2], pos + 3
    section, pos = decode(message, pos + 1)
    return _BY_NAME.get(section, section), pos


def _annotations(message: bytes) -> dict[Any, Any]:
    """The service's annotations in a message of which not all can be decoded: by the standard the size of every value
    is known even if its type is not. None of them where the sizes do not fit together."""
    try:
        pos = 0
        while pos < len(message):
            section, start = _descriptor(message, pos)
            pos = end_of(message, start)
            if section == ANNOTATIONS:
                return _simple_pairs(message, start, pos)
    except MALFORMED:
        pass
    return {}


def _simple_pairs(message: bytes, pos: int, end: int) -> dict[Any, Any]:
    found = {}
    width = {0xC1: 1, 0xD1: 4}.get(message[pos], 0)
    count = int.from_bytes(message[pos + 1 + width : pos + 1 + 2 * width], "big")
    pos += 1 + 2 * width
    for _ in range(count // 2):
        at = end_of(message, pos)
        key, pos = message[pos:at], end_of(message, at)
        if key[0] in TEXTS and (name := decode(key, 0)[0]) in COLUMN_ANNOTATIONS:
            found[name] = decode(message[at:pos], 0)[0]
    if not width or pos != end:
        raise ValueError("a map's size contradicts its elements")
    return found


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
