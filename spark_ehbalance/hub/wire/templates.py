"""Messages of one shape, many at a time: which bytes all of them share, and where the others are.

A `Template` is learned from one message. It takes the sections up to the annotations apart into segments of fixed
length, each but the last with a text of any length behind it; what is neither the value of one of the service's
annotations nor a size must be the same in every message. Of numpy's operations there is a fixed number, whatever the
number of messages: 0.1 to 0.2 µs an event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_ehbalance.hub.rows import COLUMN_ANNOTATIONS, KEY, NUMBER, OFFSET, PUBLISHER, TIME
from spark_ehbalance.hub.wire.messages import ANNOTATIONS, APPLICATION, PROPERTIES
from spark_ehbalance.hub.wire.scan import Booleans, Integers, Scan, Spans, Words, number, words
from spark_ehbalance.hub.wire.values import MALFORMED, decode

#: Bytes of the largest template: annotations as the service writes them have about 120.
_MOST_BYTES = 1024

_ANNOTATIONS = bytes((0x00, 0x53, ANNOTATIONS))

#: How the sections begin that may come before the annotations, of which no row has anything: the header and the
#: delivery annotations.
_BEFORE = (b"\x00\x53\x70", b"\x00\x53\x71")


class Found(NamedTuple):
    """The fields of the messages that a template fits. A section that a message lacks has the length 0."""

    numbers: Integers
    times: Integers | None
    offsets: Spans | None
    keys: Spans | None
    properties: Spans
    application: Spans
    bodies: Spans


class _Segment(NamedTuple):
    """`size` bytes, under `mask` as `expected`; 8-byte numbers at `fields`; then a text, its length at the end.

    Compared in words of eight bytes, which is why `expected` and `mask` may have up to seven more, all 0.
    """

    size: int
    expected: Words
    mask: Words
    fields: dict[bytes, int]
    text: Any
    width: int


class _Shape:
    """What bytes up to the end of the annotations have in common, in which the values of the service's differ.

    Their map begins at `at` in `raw`, which ends with it.
    """

    def __init__(self, raw: bytes, at: int) -> None:
        """Raises one of `MALFORMED`, or KeyError, if there can be no template for it."""
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
            if key in (NUMBER, TIME):
                if raw[at] not in (0x81, 0x83):
                    raise ValueError("a number in a small form")
                self._fields[key] = at + 1 - self._start
                self._variable.append(slice(at + 1, at + 9))
            elif key in (OFFSET, KEY):
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
        """The numbers and texts, by key; `scan` goes on behind the map."""
        found: dict[Any, Any] = {}
        end: Integers | None = None
        for segment in self._segments:
            if not segment.size:
                continue
            rows = scan.take(segment.size)
            scan.good &= ~((rows.view(np.uint64) ^ segment.expected) & segment.mask).any(axis=1)
            if end is None:
                size = number(rows, self._after_size - self._size_width, self._size_width)
                end = scan.pos - segment.size + self._after_size + size
            for name, at in segment.fields.items():
                found[name] = number(rows, at, 8)
            if segment.width:
                found[segment.text] = scan.skip(number(rows, segment.size - segment.width, segment.width))
        scan.good &= end == scan.pos
        return found


class Template:
    """A shape of messages. `publisher` and `other` are the values of the annotations that all of them share."""

    def __init__(self, message: bytes) -> None:
        """Learn from `message`. Raises one of `MALFORMED`, or KeyError, if there can be no template for its shape."""
        pos = 0
        while message.startswith(_BEFORE, pos):
            pos = decode(message, pos)[1]
        annotations, end = decode(message, pos)
        if not (message.startswith(_ANNOTATIONS, pos) and isinstance(annotations, dict) and NUMBER in annotations):
            raise ValueError("no annotations where they belong, or none with a sequence number")
        self.publisher: Any = annotations.get(PUBLISHER)
        self.other: dict[Any, Any] = {key: value for key, value in annotations.items() if key not in COLUMN_ANNOTATIONS}
        self._shape = _Shape(message[:end], pos + 3)

    def match(self, data: bytearray, starts: Integers, ends: Integers) -> tuple[Booleans, Found]:
        """Which of the messages it fits, and the fields of those. `data` has `SLACK` more bytes than the last end."""
        scan = Scan(data, starts)
        found = self._shape.follow(scan)
        scan.begin_sections()
        properties, application = scan.section(PROPERTIES), scan.section(APPLICATION)
        bodies = scan.body_to(ends)
        fields = (found[NUMBER], found.get(TIME), found.get(OFFSET), found.get(KEY), properties, application, bodies)
        return scan.good, Found(*(_of_good(field, scan.good) for field in fields))


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
