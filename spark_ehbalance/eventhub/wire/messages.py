"""Parses one AMQP message or section in any encoding: the slow path, 3 to 8 µs per event."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from spark_ehbalance.eventhub.rows import (
    COLUMN_ANNOTATIONS,
    Event,
    UnreadableError,
    check,
    data_body,
    sequence_body,
    value_body,
)
from spark_ehbalance.eventhub.wire.values import MALFORMED, TEXTS, ArrayBudget, MalformedError, decode, end_of

DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = range(0x71, 0x76)
_SEQUENCE, VALUE = 0x76, 0x77

#: Sections by symbolic descriptor, which AMQP allows instead of the code.
_BY_NAME = {
    b"amqp:message-annotations:map": ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": _SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
}

#: A message may have as many zero-byte array elements as it has bytes, plus this number: the size of one small array.
_SMALL_ARRAY = 255

#: Names of the fields of the properties section, in wire order.
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
    """Parse a message. Raises `UnreadableError`."""
    system: dict[Any, Any] = {}
    standard: dict[Any, Any] = {}
    application: dict[Any, Any] = {}
    data: list[bytes | None] = []
    sequences: list[Any] = []
    single: Any = None
    pos, end, budget = 0, len(message), _budget(message)
    try:
        while pos < end:
            if message[pos] == 0 and message[pos + 1] == 0x53:
                section, pos = message[pos + 2], pos + 3
            else:
                section, pos = _descriptor(message, pos)
            code = message[pos]
            if section == DATA and code & 0xEF == 0xA0:
                raw, pos = TEXTS[code](
                    message, pos + 1
                )  # not `decode`, because it would copy the body to mark it as binary
                data.append(raw)
                continue
            value, pos = decode(message, pos, budget)
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
        is_truncated = isinstance(error, (IndexError, struct.error))
        reason = "it is not valid AMQP: " + ("it is truncated" if is_truncated else str(error))
        raise UnreadableError(reason, system or _annotations(message)) from error


def _budget(message: bytes) -> ArrayBudget:
    return ArrayBudget(len(message) + _SMALL_ARRAY)


def _descriptor(message: bytes, pos: int) -> tuple[Any, int]:
    """The code of the section at `pos`, and the position of the section's value."""
    if message[pos]:
        raise ValueError("a section has no descriptor")
    if message[pos + 1] == 0x53:
        return message[pos + 2], pos + 3
    section, pos = decode(message, pos + 1)
    return _BY_NAME.get(section, section), pos


def _annotations(message: bytes) -> dict[Any, Any]:
    """The service's annotations in a message that cannot be decoded as a whole. They can be found because AMQP encodes
    the size of every value, even of an unknown type. Empty if sizes are contradictory."""
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
    found, budget = {}, _budget(message)
    width = {0xC1: 1, 0xD1: 4}.get(message[pos], 0)
    count = int.from_bytes(message[pos + 1 + width : pos + 1 + 2 * width], "big")
    pos += 1 + 2 * width
    for _ in range(count // 2):
        at = end_of(message, pos)
        key, pos = message[pos:at], end_of(message, at)
        if key[0] in TEXTS and (name := decode(key, 0)[0]) in COLUMN_ANNOTATIONS:
            found[name] = decode(message[at:pos], 0, budget)[0]
    if not width or pos != end:
        raise ValueError("a map's size contradicts its elements")
    return found


def properties(fields: Any) -> dict[Any, Any]:
    """The non-null message properties by name."""
    if not isinstance(fields, list) or len(fields) > len(_FIELDS):
        raise ValueError("the properties section is not a list of its fields")
    return {name: value for name, value in zip(_FIELDS, fields, strict=False) if value is not None}


def pairs(value: Any) -> dict[Any, Any]:
    """The pairs of an annotations or application-properties section."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("a section of pairs is not a map")
    return value


def read_properties(section: bytes) -> dict[Any, Any]:
    """The message properties in a properties section; empty if `section` has no bytes. Raises `MalformedError`."""
    return _read(section, properties) if section else {}


def read_application(section: bytes) -> dict[Any, Any]:
    """The application properties in their section; empty if `section` has no bytes. Raises `MalformedError`."""
    return _read(section, pairs) if section else {}


def _read(section: bytes, convert: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    """Read a section, which must end where its size indicates. Raises `MalformedError`."""
    try:
        value, end = decode(section, 0)
        if end != len(section):
            raise ValueError("a section's size contradicts its elements")
        return convert(value)
    except MALFORMED as error:
        raise MalformedError(str(error)) from error
