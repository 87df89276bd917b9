"""Parses and builds AMQP messages, and inserts the annotations that Event Hubs adds.

An event is parsed once, when it is published, and stored as encoded bytes with the service's annotations inserted.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_ehbalance.emulator.amqp.codec import Described, Int, Symbol, ULong, decode, encode, skip
from spark_ehbalance.emulator.amqp.errors import DecodeError

BATCH_FORMAT = 0x80013700  # Event Hubs' own message format: each data section of the body is an encoded message

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x70, 0x79)
PARTITION_KEY = "x-opt-partition-key"
_POSITION = ("x-opt-sequence-number-epoch", "x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")
_SERVICE_KEYS = {*_POSITION, PARTITION_KEY, "x-opt-publisher"}
_EPOCH_KEY, _SEQUENCE_KEY, _OFFSET_KEY, _TIME_KEY = (encode(Symbol(name)) for name in _POSITION)
_SMALL_MAP, _LARGE_MAP, _TIME = struct.Struct(">4sBB"), struct.Struct(">4sII"), struct.Struct(">sq")


class EncodedEvent(NamedTuple):
    """An event to store: encoded parts, between which the service's annotations are inserted.

    `annotations` are the sender's pairs of the annotation map, `items` is the number of keys and values in them, and
    `tail` contains the other sections.
    """

    annotations: bytes
    items: int
    tail: bytes
    partition_key: str | None = None

    def with_annotation(self, name: str, value: Any) -> EncodedEvent:
        """The event with one more annotation, like those that publishers and Kafka clients add."""
        return self._replace(annotations=self.annotations + _encode_pair(name, value), items=self.items + 2)

    def render(self, epoch: int, sequence_number: int, offset: str, enqueued_ms: int) -> bytes:
        """The encoded message that readers receive. `enqueued_ms` is in milliseconds since 1970."""
        key = b"" if self.partition_key is None else _encode_key(self.partition_key)
        position = _encode_position(epoch, sequence_number, offset, enqueued_ms)
        size, count = len(self.annotations) + len(key) + len(position), self.items + (10 if key else 8)
        if size < 255 and count < 256:
            map_header = _SMALL_MAP.pack(b"\x00\x53\x72\xc1", size + 1, count)
        else:
            map_header = _LARGE_MAP.pack(b"\x00\x53\x72\xd1", size + 4, count)
        return b"".join((map_header, self.annotations, key, position, self.tail))


def _encode_position(epoch: int, sequence_number: int, offset: str, enqueued_ms: int) -> bytes:
    """The encoded annotations that state an event's position in its partition, in the service's order."""
    before = _EPOCH_KEY + encode(Int(epoch)) + _SEQUENCE_KEY + encode(sequence_number)
    return before + _OFFSET_KEY + encode(offset) + _TIME_KEY + _TIME.pack(b"\x83", enqueued_ms)


class Sections(NamedTuple):
    """A decoded request or response of `$cbs` or `$management`."""

    properties: list[Any]
    application: dict[Any, Any]
    value: Any


class Response(NamedTuple):
    """The response to a request: an HTTP status, a line of text, and either the requested value or an error's
    condition."""

    status: int
    description: str
    value: Any = None
    condition: str | None = None


def _encode_pair(name: str, value: Any) -> bytes:
    return encode(Symbol(name)) + encode(value)


@functools.lru_cache(1024)
def _encode_key(partition_key: str) -> bytes:
    return _encode_pair(PARTITION_KEY, partition_key)


def _split_sections(message: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the descriptor of each section, and the start and end of its value. Raises DecodeError if a section is
    truncated or unknown."""
    pos = 0
    while pos < len(message):
        if message.startswith(b"\x00\x53", pos):
            section, start = message[pos + 2], pos + 3
        else:
            section, start = decode(message, pos + 1)
        if message[pos] or section not in range(_HEADER, _FOOTER + 1):
            raise DecodeError(f"message section {section!r} is unknown")
        pos = skip(message, start)
        yield section, start, pos


def parse_event(message: bytes) -> EncodedEvent:
    """Parse one published message. Raises DecodeError if any section is malformed.

    Like the service, this drops the header, but keeps delivery annotations although they are meant for one hop only.
    """
    annotations = b""
    tail: list[bytes] = []
    count, partition_key = 0, None
    for section, start, end in _split_sections(message):
        if section == _ANNOTATIONS:
            annotations, count, partition_key = _parse_annotations(message[start:end])
        elif section != _HEADER:
            tail += (b"\x00\x53%c" % section, message[start:end])
    return EncodedEvent(annotations, count, b"".join(tail), partition_key)


@functools.lru_cache(1024)  # the events of a key have the same annotations
def _parse_annotations(section: bytes) -> tuple[bytes, int, str | None]:
    """The sender's encoded pairs (without keys that the service sets itself), the number of keys and values in them,
    and the partition key."""
    if section[0] not in (0xC1, 0xD1):
        raise DecodeError("the annotations are not a map")
    field = 1 if section[0] == 0xC1 else 4
    count = int.from_bytes(section[1 + field : 1 + 2 * field], "big")
    pos = 1 + 2 * field
    pairs, partition_key = [], None
    for _ in range(count // 2):
        key, value_start = decode(section, pos)
        end = skip(section, value_start)
        if key == PARTITION_KEY:
            value = decode(section, value_start)[0]
            partition_key = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        elif key not in _SERVICE_KEYS:
            pairs.append(section[pos:end])
        pos = end
    return b"".join(pairs), 2 * len(pairs), partition_key


def parse_batch(message: bytes) -> tuple[list[EncodedEvent], str | None]:
    """The events in a message in BATCH_FORMAT, and the partition key of the batch. Raises DecodeError."""
    events, partition_key = [], None
    for section, start, end in _split_sections(message):
        if section == _ANNOTATIONS:
            partition_key = _parse_annotations(message[start:end])[2]
        elif section == _DATA:
            body = start + (2 if message[start] == 0xA0 else 5)
            events.append(parse_event(message[body:end]))
        elif section in (_SEQUENCE, _VALUE):
            raise DecodeError("the body of a batch must be data sections")
    return events, partition_key


def build_events(
    bodies: Sequence[bytes], properties: Sequence[Mapping[str, Any] | None] = (None,), partition_key: str | None = None
) -> list[EncodedEvent]:
    """Build events from their bodies. Raises ValueError unless `properties` has one mapping for each body or one for
    all bodies, and TypeError for a property value that AMQP has no type for."""
    sections = [b"\x00\x53\x74" + encode(dict(mapping)) if mapping else b"" for mapping in properties]
    if len(sections) == 1:
        sections *= len(bodies)
    if len(sections) != len(bodies):
        raise ValueError(f"{len(sections)} property mappings for {len(bodies)} events")
    pairs = zip(sections, bodies, strict=True)
    data = b"\x00\x53\x75\xb0"  # a data section, whose size follows
    return [
        EncodedEvent(b"", 0, b"".join((section, data, len(body).to_bytes(4, "big"), body)), partition_key)
        for section, body in pairs
    ]


def parse_sections(message: bytes) -> Sections:
    """Decode a request or response. Raises DecodeError."""
    values: dict[int, Any] = {section: decode(message, start)[0] for section, start, _ in _split_sections(message)}
    return Sections(values.get(_PROPERTIES, []), values.get(_APPLICATION, {}), values.get(_VALUE))


class Content(NamedTuple):
    """The content of a rendered message. `body` is bytes, a value of another AMQP type, or None."""

    annotations: dict[Any, Any]
    properties: list[Any]
    application: dict[Any, Any]
    body: Any


def parse_content(message: bytes) -> Content:
    """Decode a rendered message."""
    sections: dict[int, list[Any]] = {}
    for section, start, _ in _split_sections(message):
        sections.setdefault(section, []).append(decode(message, start)[0])
    body: Any = sections.get(_VALUE, [None])[0]
    if _DATA in sections:
        body = b"".join(sections[_DATA])
    elif _SEQUENCE in sections:
        body = [item for sequence in sections[_SEQUENCE] for item in sequence]
    annotations, properties, application = (
        sections.get(section, [None])[0] for section in (_ANNOTATIONS, _PROPERTIES, _APPLICATION)
    )
    return Content(annotations or {}, properties or [], application or {}, body)


def build_response(correlation_id: Any, application: dict[str, Any], value: Any) -> bytes:
    """Encode the response of a node, with all 13 fields of the properties section. It has no body if `value` is
    None."""
    properties = [None] * 5 + [correlation_id] + [None] * 7
    sections = {_PROPERTIES: properties, _APPLICATION: application} | ({} if value is None else {_VALUE: value})
    return b"".join(encode(Described(ULong(section), content)) for section, content in sections.items())
