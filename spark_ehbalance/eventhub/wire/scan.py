"""Locates the fields of many messages, which numpy parses in lockstep.

A `Template` matches messages of one shape. `find_sections` and `find_pairs` read messages of differing shapes: the
first pairs of all maps at once, then the second ones, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_ehbalance.eventhub.rows import (
    COLUMN_ANNOTATIONS,
    ENQUEUED_TIME,
    OFFSET,
    PARTITION_KEY,
    PUBLISHER,
    SEQUENCE_NUMBER,
    leave_out_no_epoch,
)
from spark_ehbalance.eventhub.wire.messages import ANNOTATIONS, APPLICATION, DATA, DELIVERY, PROPERTIES, VALUE
from spark_ehbalance.eventhub.wire.transfers import RawMessages
from spark_ehbalance.eventhub.wire.values import MALFORMED, decode, end_of

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]


def _codes(*codes: int) -> Booleans:
    return np.isin(np.arange(256), codes)


#: Masks by type code. Text is string, symbol or binary; every value of an integer type fits in signed 64 bits.
TEXT = _codes(0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)
BINARY = _codes(0xA0, 0xB0)
_SIGNED = _codes(0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
INTEGER = _SIGNED | _codes(0x50, 0x52, 0x53, 0x60, 0x70)

#: Types that are neither compound nor described.
_SIMPLE = TEXT | INTEGER | _codes(0x40, 0x41, 0x42, 0x43, 0x44, 0x56, 0x72, 0x73, 0x74, 0x80, 0x82, 0x84, 0x94, 0x98)

#: Indexed by the high half of the type code: the size of the value, and the size of the value's size field, in bytes.
_SIZES = np.array([0] * 5 + [1, 2, 4, 8, 16] + [0] * 6)
_SIZE_WIDTHS = np.array([0] * 10 + [1, 4] * 3)

#: Maximum size in bytes of each of a template's two parts: everything up to the end of the annotations (the service's
#: annotations take about 120), and everything after the body.
_MAX_TEMPLATE_BYTES = 1024

#: Maximum number of pairs per map, because every map costs as much time and memory as the largest one. For the same
#: reason, the largest maps, at most one in `_OUTLIERS`, are left to the slow path.
_MAX_PAIRS = 64
_OUTLIERS = 64

_ANNOTATIONS, _DELIVERY = bytes((0x00, 0x53, ANNOTATIONS)), bytes((0x00, 0x53, DELIVERY))

#: First bytes of the header and of the delivery annotations, which may precede the annotations and have no column.
_BEFORE = (b"\x00\x53\x70", _DELIVERY)


class Spans(NamedTuple):
    """The locations of a part of each message in the buffer."""

    starts: Integers
    lengths: Integers

    def select(self, which: Integers | Booleans | slice) -> Spans:
        """The spans of the selected messages."""
        return Spans(self.starts[which], self.lengths[which])


class Scan:
    """A cursor into each of many messages. `good` is the mask of messages without a mismatch so far."""

    def __init__(self, data: bytearray, starts: Integers) -> None:
        """`data` must have `transfers.SLACK` bytes after the last message, because sections and values are read before
        their existence is checked."""
        self.pos = starts
        self.good = np.ones(len(starts), np.bool_)
        self._data = data
        self._head: _Bytes | None = None  # first bytes of the next section, if they were read already

    def peek(self, size: int) -> _Bytes:
        """The next `size` bytes of each message; bytes beyond the end of the buffer are arbitrary."""
        last = len(self._data) - size
        if last < 0:  # every message is shorter
            self.good[:] = False
            return np.zeros((len(self.pos), size), np.uint8)
        # view the data as overlapping items of `size` bytes, then copy the items at the positions
        items = np.ndarray((last + 1,), f"V{size}", self._data, strides=(1,))
        rows: _Bytes = items[np.minimum(self.pos, last)].view(np.uint8).reshape(len(self.pos), size)
        return rows

    def skip(self, lengths: Integers) -> Spans:
        """Skip `lengths` bytes of each message, and return their spans."""
        spans = Spans(self.pos, lengths)
        self.pos = self.pos + lengths
        return spans

    def value(self) -> tuple[_Bytes, Spans]:
        """The type code and the span of the next value, which must be neither compound nor described."""
        rows = self.peek(5)
        codes = rows[:, 0]
        self.good &= _SIMPLE[codes]
        kinds = codes >> 4
        widths = _SIZE_WIDTHS[kinds]
        self.pos = self.pos + 1 + widths
        return codes, self.skip(np.where(widths, _sizes(rows, 1, widths == 4), _SIZES[kinds]))

    def section(self, code: int) -> Spans:
        """The value of the section `code`; the span has length 0 where another section comes next."""
        rows, present = self._begins(code)
        if not present.any():
            return Spans(self.pos, np.zeros_like(self.pos))
        form = rows[:, 3]
        small, wide = form & 0xFE == 0xC0, form & 0xFE == 0xD0
        self.good &= ~present | small | wide
        size = _sizes(rows, 4, wide) + np.where(wide, 5, 2)
        self.pos = self.pos + np.where(present, 3, 0)
        self._head = None
        return self.skip(np.where(present, size, 0))

    def body(self) -> Spans:
        """The span of the body, which must come next: one data section, or one amqp-value section that
        contains binary or text."""
        (rows, data), (_, value) = self._begins(DATA), self._begins(VALUE)
        form = rows[:, 3]
        wide = form & 0xF0 == 0xB0
        self.good &= (data & (form & 0xEF == 0xA0)) | (value & TEXT[form])
        self.pos = self.pos + np.where(wide, 8, 5)
        self._head = None
        return self.skip(_sizes(rows, 4, wide))

    def _begins(self, code: int) -> tuple[_Bytes, Booleans]:
        """The first 8 bytes of each message's next section, and whether it is the section `code`."""
        if self._head is None:
            self._head = self.peek(8)
        rows = self._head
        return rows, (rows[:, 0] == 0) & (rows[:, 1] == 0x53) & (rows[:, 2] == code)


def _words(raw: bytes | bytearray) -> _Words:
    """The bytes in words of eight, padded with zeros."""
    return np.frombuffer(raw + bytes(-len(raw) % 8), np.uint64)


def big_endian(rows: _Bytes, at: int, width: int, kind: str = "u") -> Integers:
    """The big-endian integers in the `width` byte columns from `at` on; signed if `kind` is "i"."""
    return np.ascontiguousarray(rows[:, at : at + width]).view(f">{kind}{width}").ravel().astype(np.int64)


def _sizes(rows: _Bytes, at: int, wide: Booleans) -> Integers:
    """The sizes in column `at`; where `wide` is set, in four columns."""
    sizes = rows[:, at].astype(np.int64)
    return np.where(wide, big_endian(rows, at, 4), sizes) if wide.any() else sizes


def integers(data: bytearray, codes: Integers, spans: Spans) -> Integers:
    """The integers in the `spans` that `Scan.value` returned. All type `codes` must be in `INTEGER`."""
    left_aligned = big_endian(Scan(data, spans.starts).peek(8), 0, 8, "i")
    shift = 64 - 8 * spans.lengths
    unsigned = (left_aligned.view(np.uint64) >> shift.view(np.uint64)).view(np.int64)
    return np.where(_SIGNED[codes], left_aligned >> shift, unsigned)


class Sections(NamedTuple):
    """Locations of the sections after the annotations. The span of a missing section has length 0."""

    properties: Spans
    application: Spans
    bodies: Spans

    def select(self, which: Booleans) -> Sections:
        """The sections of the selected messages."""
        return Sections(*(spans.select(which) for spans in self))


def _sections(scan: Scan) -> Sections:
    return Sections(scan.section(PROPERTIES), scan.section(APPLICATION), scan.body())


# --- messages of one shape -------------------------------------------------------------------------------------------


class _Segment(NamedTuple):
    """A part of a message. Its first `size` bytes must equal `expected` where `mask` is set, and contain integers at
    `fields` (position and width). The value of the annotation `text` follows; its length is in the last `width` of
    these bytes.

    Bytes are compared in words of eight, so `expected` and `mask` may have up to seven extra bytes, all 0.
    """

    size: int
    expected: _Words
    mask: _Words
    fields: dict[bytes, tuple[int, int]]
    text: bytes
    width: int

    def match(self, scan: Scan) -> _Bytes:
        """Skip these bytes in each message, and return them."""
        rows = scan.peek(8 * len(self.mask))
        scan.pos = scan.pos + self.size
        scan.good &= ~((rows.view(np.uint64) ^ self.expected) & self.mask).any(axis=1)
        return rows


class Template:
    """A shape of messages, learned from one message. Matching messages share its `publisher` and its
    `other_annotations`, which have no column.

    The bytes up to the end of the annotations form segments of fixed length, each except the last followed by a text of
    any length. All these bytes must be equal, except for sizes and the values of the service's annotations. The
    delivery annotations after the body, where azure-eventhub puts them and the service keeps them, must be equal
    too."""

    def __init__(self, message: bytes) -> None:
        """Raises KeyError or one of `MALFORMED` for an unsupported shape."""
        pos, head = 0, message[:_MAX_TEMPLATE_BYTES]
        while head.startswith(_BEFORE, pos):
            pos = decode(head, pos)[1]
        if not head.startswith(_ANNOTATIONS, pos):
            raise ValueError("no annotations after header and delivery annotations")
        annotations, end = decode(head, pos)
        raw, at = head[:end], pos + 3
        self._width = {0xC1: 1, 0xD1: 4}[raw[at]]  # width of the map's size
        self._after_size = at + 1 + self._width
        self._segments: list[_Segment] = []
        variable, fields, start = [slice(at + 1, self._after_size)], dict[bytes, tuple[int, int]](), 0

        def cut(to: int, text: bytes, width: int) -> None:
            mask = bytearray(b"\xff" * (to - start))
            for part in variable:
                mask[part.start - start : part.stop - start] = bytes(part.stop - part.start)
            self._segments.append(_Segment(to - start, _words(raw[start:to]), _words(mask), {**fields}, text, width))
            variable.clear()
            fields.clear()

        pos = self._after_size + self._width
        for _ in annotations:
            key, at = decode(raw, pos)
            pos = decode(raw, at)[1]
            if key in (SEQUENCE_NUMBER, ENQUEUED_TIME):
                width = {0x55: 1, 0x81: 8, 0x83: 8}[raw[at]]
                fields[key] = at + 1 - start, width
                variable.append(slice(at + 1, at + 1 + width))
            elif key in (OFFSET, PARTITION_KEY):
                width = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}[raw[at]]
                variable.append(slice(at + 1, at + 1 + width))
                cut(at + 1 + width, key, width)
                start = pos
        cut(len(raw), b"", 0)
        if SEQUENCE_NUMBER not in annotations or pos != len(raw) or end > len(raw):
            raise ValueError("no sequence number, a duplicate key, or a map that is too long")
        self.fits_all = False  # whether it matched all messages of the last call
        self.publisher: Any = annotations.get(PUBLISHER)
        self.other_annotations = {key: value for key, value in annotations.items() if key not in COLUMN_ANNOTATIONS}
        leave_out_no_epoch(self.other_annotations)
        for _ in Sections._fields:
            if end < len(message) and not message.startswith(_DELIVERY, end):
                end = end_of(message, end + 3)
        tail = message[end:]
        delivery = len(tail) <= _MAX_TEMPLATE_BYTES and tail.startswith(_DELIVERY) and decode(tail, 3)[1] == len(tail)
        if tail and not delivery:
            raise ValueError("after the body: a section other than delivery annotations, or too long annotations")
        self._tail = _Segment(len(tail), _words(tail), _words(b"\xff" * len(tail)), {}, b"", 0)

    def match(self, messages: RawMessages) -> tuple[Booleans, dict[bytes, Any], Sections]:
        """The mask of the matching messages; their annotations by key, as integers and spans of texts; and their
        sections."""
        scan, found = Scan(messages.data, messages.starts), dict[bytes, Any]()
        end: Integers | None = None
        for segment in self._segments:
            if not segment.size:
                continue
            rows = segment.match(scan)
            if end is None:
                size = big_endian(rows, self._after_size - self._width, self._width)
                end = scan.pos - segment.size + self._after_size + size
            for name, (at, width) in segment.fields.items():
                found[name] = big_endian(rows, at, width, "i")
            if segment.width:
                found[segment.text] = scan.skip(big_endian(rows, segment.size - segment.width, segment.width))
        scan.good &= end == scan.pos
        sections = _sections(scan)
        if self._tail.size:
            self._tail.match(scan)
        good = scan.good & (scan.pos == messages.ends)
        self.fits_all = bool(good.all())
        if self.fits_all:
            return good, found, sections
        matching = {key: item.select(good) if isinstance(item, Spans) else item[good] for key, item in found.items()}
        return good, matching, sections.select(good)


def learn(message: bytes) -> Template | None:
    """A template for messages like this one; None if the shape is not supported."""
    try:
        return Template(message)
    except (*MALFORMED, KeyError):
        return None


# --- messages of any shape -------------------------------------------------------------------------------------------


def find_sections(messages: RawMessages) -> tuple[Booleans, Spans, Sections]:
    """The mask of the messages that consist of annotations, then optional properties, optional application properties
    and one body; and the spans of the annotations and of these sections. Delivery annotations may come first and
    last."""
    scan = Scan(messages.data, messages.starts)
    before, annotations = scan.section(DELIVERY), scan.section(ANNOTATIONS)
    sections = _sections(scan)
    good = scan.good & (annotations.lengths > 0)
    for delivery in (before, scan.section(DELIVERY)):
        if delivery.lengths.any():
            good &= find_pairs(messages.data, delivery)[0]
    return good & (scan.pos == messages.ends), annotations, sections


class Pairs(NamedTuple):
    """The pairs of many maps, in the order of the maps."""

    maps: Integers  # the index of the map that contains the pair
    keys: Spans
    codes: Integers  # the type code of the value
    values: Spans  # its bytes, without type code and size

    def select(self, which: Booleans, maps: Booleans) -> Pairs:
        """The selected pairs in the selected maps. The maps are renumbered from 0."""
        chosen = which & maps[self.maps]
        indices = (np.cumsum(maps) - 1)[self.maps[chosen]]
        return Pairs(indices, self.keys.select(chosen), self.codes[chosen], self.values.select(chosen))


def find_pairs(data: bytearray, maps: Spans) -> tuple[Booleans, Pairs]:
    """The mask of the supported maps, and their pairs. A map is supported if all its keys are texts, no value is
    compound or described, and it does not have many more pairs than the others.

    A span of length 0 is an empty map. `data` has the same meaning as in `Scan`.
    """
    scan = Scan(data, maps.starts)
    rows, present = scan.peek(9), maps.lengths > 0
    wide = rows[:, 0] == 0xD1
    items = np.where(present, np.where(wide, big_endian(rows, 5, 4), rows[:, 2]), 0)
    counts = items // 2
    most = min(_MAX_PAIRS, int(np.sort(counts)[-1 - len(counts) // _OUTLIERS]))
    good = scan.good & (~present | wide | (rows[:, 0] == 0xC1)) & (items % 2 == 0) & (counts <= most)
    counts[~good] = 0
    pos = maps.starts + np.where(present, np.where(wide, 9, 3), 0)
    fields = np.empty((5, len(counts), most), np.int64)
    for index in range(most):
        at = np.flatnonzero(counts > index)
        scan = Scan(data, pos[at])
        key_codes, keys = scan.value()
        codes, values = scan.value()
        good[at] &= scan.good & TEXT[key_codes]
        pos[at] = scan.pos
        fields[:, at, index] = (*keys, codes, *values)
    good &= pos == maps.starts + maps.lengths
    found = good[:, np.newaxis] & (np.arange(most) < counts[:, np.newaxis])
    key_starts, key_lengths, codes, starts, lengths = fields[:, found]
    return good, Pairs(np.nonzero(found)[0], Spans(key_starts, key_lengths), codes, Spans(starts, lengths))


def find_named(
    data: bytearray, pairs: Pairs, maps: int, codes: Mapping[bytes, Booleans]
) -> tuple[Booleans, dict[bytes, Integers]]:
    """Returns the mask of the maps in which every name occurs at most once and has a value whose type is in
    `codes[name]`. Also returns, for each name, the index of its pair in each map (-1 if the name is missing)."""
    size = -(-max(map(len, codes)) // 8) * 8
    keys, good, found = Scan(data, pairs.keys.starts).peek(size).view(np.uint64), np.ones(maps, np.bool_), {}
    for name, allowed in codes.items():
        expected, mask = _words(name.ljust(size, b"\0")), _words((b"\xff" * len(name)).ljust(size, b"\0"))
        at = np.flatnonzero(pairs.keys.lengths == len(name))
        at = at[~((keys[at] ^ expected) & mask).any(axis=1)]
        found[name], owners = np.full(maps, -1), pairs.maps[at]
        found[name][owners] = at
        good[owners[~allowed[pairs.codes[at]]]] = False
        good[owners[1:][owners[1:] == owners[:-1]]] = False
    return good, found
