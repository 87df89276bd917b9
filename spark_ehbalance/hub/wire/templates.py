"""Messages of one shape, many at a time: which bytes all of them share, and where the others are.

A `Template` is learned from one message. It divides the sections up to the annotations into segments of fixed length,
each but the last followed by a text of any length. All bytes but sizes and the values of the service's annotations must
be the same in every message. The number of numpy operations does not depend on the number of messages: 0.1 to 0.2 µs an
event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_ehbalance.hub.rows import (
    COLUMN_ANNOTATIONS,
    ENQUEUED_TIME,
    OFFSET,
    PARTITION_KEY,
    PUBLISHER,
    SEQUENCE_NUMBER,
)
from spark_ehbalance.hub.wire.messages import ANNOTATIONS, APPLICATION, PROPERTIES
from spark_ehbalance.hub.wire.scan import Booleans, Integers, Scan, Spans, Words, big_endian, words
from spark_ehbalance.hub.wire.transfers import RawMessages
from spark_ehbalance.hub.wire.values import MALFORMED, decode

#: Bytes of the largest template: the service's annotations have about 120.
_MOST_BYTES = 1024

_ANNOTATIONS = bytes((0x00, 0x53, ANNOTATIONS))

#: How the header and the delivery annotations begin. They may come before the annotations, and are in no column.
_BEFORE = (b"\x00\x53\x70", b"\x00\x53\x71")


class Fields(NamedTuple):
    """The fields of the messages that a template fits. A section that a message lacks has the length 0."""

    sequence_numbers: Integers
    enqueued_times: Integers | None
    offsets: Spans | None
    partition_keys: Spans | None
    properties: Spans
    application: Spans
    bodies: Spans


class _Segment(NamedTuple):
    """`size` bytes that equal `expected` under `mask`; 8-byte integers at `fields`; then `text`, whose length is in the
    last `width` bytes.

    Bytes are compared in words of eight, so `expected` and `mask` may have up to seven more, all 0.
    """

    size: int
    expected: Words
    mask: Words
    fields: dict[bytes, int]
    text: Any
    width: int


class _Shape:
    """What messages of one shape have in common up to the end of the annotations."""

    def __init__(self, raw: bytes, at: int) -> None:
        """`raw` is a message's beginning; it ends with the map of the annotations, which begins at `at`.

        Raises one of `MALFORMED`, or KeyError, if there can be no template for it.
        """
        self._raw, self._size_width = raw, {0xC1: 1, 0xD1: 4}[raw[at]]
        self._after_size = at + 1 + self._size_width
        pairs = decode(raw, at)[0]
        self._segments: list[_Segment] = []
        self._start, self._fields = 0, dict[bytes, int]()
        self._variable = [slice(self._after_size - self._size_width, self._after_size)]
        pos = self._after_size + self._size_width
        for _ in pairs:
            key, at = decode(raw, pos)
            pos = decode(raw, at)[1]
            if key in (SEQUENCE_NUMBER, ENQUEUED_TIME):
                if raw[at] not in (0x81, 0x83):
                    raise ValueError("an integer in a short form")
                self._fields[key] = at + 1 - self._start
                self._variable.append(slice(at + 1, at + 9))
            elif key in (OFFSET, PARTITION_KEY):
                width = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}[raw[at]]
                self._variable.append(slice(at + 1, at + 1 + width))
                self._cut(at + 1 + width, key, width)
                self._start = pos
        self._cut(len(raw), None, 0)
        if pos != len(raw) or len(raw) > _MOST_BYTES:
            raise ValueError("a key twice, or too long a map")

    def _cut(self, to: int, text: Any, width: int) -> None:
        start, mask = self._start, bytearray(b"\xff" * (to - self._start))
        for part in self._variable:
            mask[part.start - start : part.stop - start] = bytes(part.stop - part.start)
        expected = words(self._raw[start:to])
        self._segments.append(_Segment(to - start, expected, words(mask), self._fields, text, width))
        self._variable, self._fields = [], {}

    def follow(self, scan: Scan) -> dict[Any, Any]:
        """The integers and texts, by key; `scan` is moved behind the map."""
        found: dict[Any, Any] = {}
        end: Integers | None = None
        for segment in self._segments:
            if not segment.size:
                continue
            rows = scan.take(segment.size)
            scan.good &= ~((rows.view(np.uint64) ^ segment.expected) & segment.mask).any(axis=1)
            if end is None:
                size = big_endian(rows, self._after_size - self._size_width, self._size_width)
                end = scan.pos - segment.size + self._after_size + size
            for name, at in segment.fields.items():
                found[name] = big_endian(rows, at, 8)
            if segment.width:
                found[segment.text] = scan.skip(big_endian(rows, segment.size - segment.width, segment.width))
        scan.good &= end == scan.pos
        return found


class Template:
    """A shape of messages. They share `publisher` and `other_annotations`, those without a column."""

    def __init__(self, message: bytes) -> None:
        """Learn from `message`. Raises one of `MALFORMED`, or KeyError, if there can be no template for its shape."""
        pos = 0
        while message.startswith(_BEFORE, pos):
            pos = decode(message, pos)[1]
        annotations, end = decode(message, pos)
        if not (message.startswith(_ANNOTATIONS, pos) and isinstance(annotations, dict)):
            raise ValueError("no annotations after header and delivery annotations")
        if SEQUENCE_NUMBER not in annotations:
            raise ValueError("no sequence number")
        self.publisher: Any = annotations.get(PUBLISHER)
        self.other_annotations: dict[Any, Any] = {
            key: value for key, value in annotations.items() if key not in COLUMN_ANNOTATIONS
        }
        self._shape = _Shape(message[:end], pos + 3)

    def match(self, messages: RawMessages) -> tuple[Booleans, Fields]:
        """Which of the messages it fits, and the fields of those."""
        scan = Scan(messages.data, messages.starts)
        found = self._shape.follow(scan)
        scan.begin_sections()
        properties, application = scan.section(PROPERTIES), scan.section(APPLICATION)
        bodies = scan.body_to(messages.ends)
        fields = Fields(
            found[SEQUENCE_NUMBER],
            found.get(ENQUEUED_TIME),
            found.get(OFFSET),
            found.get(PARTITION_KEY),
            properties,
            application,
            bodies,
        )
        return scan.good, Fields(*(_of_good(field, scan.good) for field in fields))


def _of_good(field: Any, good: Booleans) -> Any:
    if field is None or good.all():
        return field
    return field.of(good) if isinstance(field, Spans) else field[good]


def learn(message: bytes) -> Template | None:
    """A template for messages like this one, or None if there can be none."""
    try:
        return Template(message)
    except (*MALFORMED, KeyError):
        return None
