"""Messages of one shape, many at a time: which bytes all of them share, and where the others are.

A `Template` is learned from a message that was read the general way. It takes the sections up to the annotations apart
into segments of fixed length, each but the last with a text of any length behind it; what is neither the value of one
of the service's annotations nor a size must be the same in every message. Of numpy's operations there is a fixed
number, whatever the number of messages: 0.1 to 0.2 µs an event. Where messages are of no common shape, `match_sections`
still finds their sections in that way.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_ehbalance.hub.rows import COLUMN_ANNOTATIONS, KEY, NUMBER, OFFSET, PUBLISHER, TIME
from spark_ehbalance.hub.wire.messages import ANNOTATIONS, APPLICATION, DATA, PROPERTIES, VALUE
from spark_ehbalance.hub.wire.values import MALFORMED, decode

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

#: Bytes that a buffer must have after its end: what is read of a section before it is known to be there.
SLACK = 16

#: Bytes of the largest template: annotations as the service writes them have about 120.
_MOST_BYTES = 1024

_ANNOTATIONS = bytes((0x00, 0x53, ANNOTATIONS))

#: How the sections begin that may come before the annotations, of which no row has anything: the header and the
#: delivery annotations.
_BEFORE = (b"\x00\x53\x70", b"\x00\x53\x71")


class Spans(NamedTuple):
    """Where in the buffer a field of each message lies."""

    starts: Integers
    lengths: Integers


class Found(NamedTuple):
    """The fields of the messages that a template fits. A section that a message lacks has the length 0."""

    numbers: Integers
    times: Integers | None
    offsets: Spans | None
    keys: Spans | None
    properties: Spans
    application: Spans
    bodies: Spans


class Sections(NamedTuple):
    """Where the sections of messages lie; one that a message lacks has the length 0."""

    annotations: Spans
    properties: Spans
    application: Spans
    bodies: Spans


class _Segment(NamedTuple):
    """`size` bytes, under `mask` as `expected`; 8-byte numbers at `fields`; then a text, its length at the end.

    Compared in words of eight bytes, which is why `expected` and `mask` may have up to seven more, all 0.
    """

    size: int
    expected: npt.NDArray[np.uint64]
    mask: npt.NDArray[np.uint64]
    fields: dict[bytes, int]
    text: Any
    width: int


class _Shape:
    """What bytes up to the end of a map have in common, in which the values of `numbers` and `texts` differ.

    `texts` None stands for all keys. The map begins at `at` in `raw`, which ends with it.
    """

    def __init__(self, raw: bytes, at: int, numbers: Collection[bytes], texts: Collection[bytes] | None) -> None:
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
            if key in numbers:
                if raw[at] not in (0x81, 0x83):
                    raise ValueError("a number in a small form")
                self._fields[key] = at + 1 - self._start
                self._variable.append(slice(at + 1, at + 9))
            elif texts is None or key in texts:
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
        expected = _words(self._raw[start:to])
        self._segments.append(_Segment(to - start, expected, _words(mask), self._fields, text, width))
        self._variable, self._fields = [], {}

    def follow(self, reader: _Reader) -> dict[Any, Any]:
        """The numbers and texts, by key; `reader` goes on behind the map."""
        found: dict[Any, Any] = {}
        end: Integers | None = None
        for segment in self._segments:
            if not segment.size:
                continue
            rows = reader.take(segment.size)
            reader.good &= ~((rows.view(np.uint64) ^ segment.expected) & segment.mask).any(axis=1)
            if end is None:
                size = _number(rows, self._after_size - self._size_width, self._size_width)
                end = reader.pos - segment.size + self._after_size + size
            for name, at in segment.fields.items():
                found[name] = _number(rows, at, 8)
            if segment.width:
                found[segment.text] = reader.skip(_number(rows, segment.size - segment.width, segment.width))
        reader.good &= end == reader.pos
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
        self._shape = _Shape(message[:end], pos + 3, (NUMBER, TIME), (OFFSET, KEY))

    def match(self, data: bytearray, starts: Integers, ends: Integers) -> tuple[Booleans, Found]:
        """Which of the messages it fits, and the fields of those. `data` has `SLACK` more bytes than the last end."""
        reader = _Reader(data, starts)
        found = self._shape.follow(reader)
        reader.begin_sections()
        properties, application = reader.section(PROPERTIES), reader.section(APPLICATION)
        bodies = reader.body_to(ends)
        fields = (found[NUMBER], found.get(TIME), found.get(OFFSET), found.get(KEY), properties, application, bodies)
        return reader.good, Found(*(_of_good(field, reader.good) for field in fields))


def match_sections(data: bytearray, starts: Integers, ends: Integers) -> tuple[Booleans, Sections]:
    """Which of the messages are annotations, properties and one body, each in its place, and where those have them.

    `data` has `SLACK` more bytes than the last end.
    """
    reader = _Reader(data, starts)
    reader.begin_sections()
    annotations, properties, application = map(reader.section, (ANNOTATIONS, PROPERTIES, APPLICATION))
    fields = (annotations, properties, application, reader.body_to(ends))
    good = reader.good & (annotations.lengths > 0)
    return good, Sections(*(_of_good(field, good) for field in fields))


def _of_good(field: Any, good: Booleans) -> Any:
    if field is None or good.all():
        return field
    return Spans(field.starts[good], field.lengths[good]) if isinstance(field, Spans) else field[good]


def match_texts(data: bytearray, spans: Spans) -> tuple[dict[Any, Any], Spans] | None:
    """Maps with the same keys, in the same order, of which all values are texts: the first one, and all values.

    None if they are not like that.
    """
    first = bytes(memoryview(data)[spans.starts[0] : spans.starts[0] + spans.lengths[0]])
    try:
        pairs, _ = decode(first, 0)
        shape = _Shape(first, 0, (), None)
    except (*MALFORMED, KeyError):
        return None
    reader = _Reader(data, spans.starts)
    found = shape.follow(reader)
    if not pairs or not (reader.good & (reader.pos == spans.starts + spans.lengths)).all():
        return None
    return pairs, Spans(*(np.stack(each, axis=1).ravel() for each in zip(*found.values(), strict=True)))


class _Reader:
    """Goes through many messages at once. `good` are those that have been as expected so far."""

    def __init__(self, data: bytearray, starts: Integers) -> None:
        self.pos = starts
        self.good = np.ones(len(starts), np.bool_)
        self._data = data

    def take(self, size: int) -> Bytes:
        """The next `size` bytes of each message, and up to seven more."""
        rows = self._look(-(-size // 8) * 8)
        self.pos = self.pos + size
        return rows

    def _look(self, size: int) -> Bytes:
        # one item of `size` bytes at every byte of the buffer, of which those at the positions are copied
        last = len(self._data) - size
        if last < 0:  # no message is so long
            self.good[:] = False
            return np.zeros((len(self.pos), size), np.uint8)
        items = np.ndarray((last + 1,), f"V{size}", self._data, strides=(1,))
        rows: Bytes = items[np.minimum(self.pos, last)].view(np.uint8).reshape(len(self.pos), size)
        return rows

    def skip(self, lengths: Integers) -> Spans:
        """Go on after as many bytes, which are where it says."""
        spans = Spans(self.pos, lengths)
        self.pos = self.pos + lengths
        return spans

    def begin_sections(self) -> None:
        """Go on with `section` and `body_to`."""
        self._beginning = self._look(8)

    def section(self, code: int) -> Spans:
        """The value of the section, where it is the next one; else nothing is skipped."""
        rows = self._beginning
        here = self._descriptor(code)
        if not here.any():
            return Spans(self.pos, np.zeros_like(self.pos))
        form = rows[:, 3]
        small, wide = form & 0xFE == 0xC0, form & 0xFE == 0xD0
        self.good &= ~here | small | wide
        size = np.where(wide, _number(rows, 4, 4) + 5, rows[:, 4].astype(np.int64) + 2)
        self.pos = self.pos + np.where(here, 3, 0)
        spans = self.skip(np.where(here, size, 0))
        self._beginning = self._look(8)
        return spans

    def body_to(self, ends: Integers) -> Spans:
        """The bytes of the only data section, or of a value that is bytes or text, which must be the next section and
        reach the message's end."""
        rows = self._beginning
        form = rows[:, 3]
        small, wide = form & 0xF0 == 0xA0, form & 0xF0 == 0xB0
        kind = form & 0x0F
        text = self._descriptor(VALUE) & ((kind == 1) | (kind == 3))
        self.good &= (small | wide) & (text | ((kind == 0) & (self._descriptor(DATA) | self._descriptor(VALUE))))
        self.pos = self.pos + np.where(wide, 8, 5)
        spans = self.skip(np.where(wide, _number(rows, 4, 4), rows[:, 4]))
        self.good &= self.pos == ends
        return spans

    def _descriptor(self, code: int) -> Booleans:
        rows = self._beginning
        here: Booleans = (rows[:, 0] == 0) & (rows[:, 1] == 0x53) & (rows[:, 2] == code)
        return here


def _words(raw: bytes | bytearray) -> npt.NDArray[np.uint64]:
    return np.frombuffer(raw + bytes(-len(raw) % 8), np.uint64)


def _number(rows: Bytes, at: int, width: int) -> Integers:
    """The big-endian numbers in some columns of bytes: signed if they have 8 bytes, else unsigned."""
    form = {1: "u1", 4: ">u4", 8: ">i8"}[width]
    return np.ascontiguousarray(rows[:, at : at + width]).view(form).ravel().astype(np.int64)


def learn(message: bytes) -> Template | None:
    """A template for messages like this one, or None if there can be none."""
    try:
        return Template(message)
    except (*MALFORMED, KeyError):
        return None
