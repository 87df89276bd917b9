"""Parses many messages in step: a fixed number of numpy operations, however many there are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_ehbalance.hub.wire.messages import DATA, VALUE

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

#: Bytes that a buffer must have after its end: a section or value is read before its presence is checked.
SLACK = 16


def _codes(*codes: int) -> Booleans:
    return np.isin(np.arange(256), codes)


#: Masks by the type code that a value begins with. Text is a text, symbol or binary; an integer fits 64 bits with a
#: sign.
TEXT = _codes(0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)
BINARY = _codes(0xA0, 0xB0)
_SIGNED = _codes(0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
INTEGER = _SIGNED | _codes(0x50, 0x52, 0x53, 0x60, 0x70)

#: What is neither compound nor described.
_SIMPLE = TEXT | INTEGER | _codes(0x40, 0x41, 0x42, 0x43, 0x44, 0x56, 0x72, 0x73, 0x74, 0x80, 0x82, 0x84, 0x94, 0x98)

#: By the first half of the type code: how many bytes the value has, or how many bytes hold its size.
_SIZES = np.array([0] * 5 + [1, 2, 4, 8, 16] + [0] * 6)
_SIZE_WIDTHS = np.array([0] * 10 + [1, 4] * 3)


class Spans(NamedTuple):
    """Where in the buffer a part of each message lies."""

    starts: Integers
    lengths: Integers

    def of(self, which: Integers | Booleans | slice) -> Spans:
        """The spans of some of the messages."""
        return Spans(self.starts[which], self.lengths[which])


class Scan:
    """A cursor into each of many messages. `good` is the mask of those that have been as expected so far."""

    def __init__(self, data: bytearray, starts: Integers) -> None:
        """`data` has `SLACK` more bytes than the end of the last message."""
        self.pos = starts
        self.good = np.ones(len(starts), np.bool_)
        self._data = data

    def look(self, size: int) -> Bytes:
        """The next `size` bytes of each message; other bytes where the buffer ends before."""
        last = len(self._data) - size
        if last < 0:  # all messages are shorter
            self.good[:] = False
            return np.zeros((len(self.pos), size), np.uint8)
        # an item of `size` bytes for every byte of the buffer, of which the ones at the positions are copied
        items = np.ndarray((last + 1,), f"V{size}", self._data, strides=(1,))
        rows: Bytes = items[np.minimum(self.pos, last)].view(np.uint8).reshape(len(self.pos), size)
        return rows

    def take(self, size: int) -> Bytes:
        """The next `size` bytes of each message, and up to seven more."""
        rows = self.look(-(-size // 8) * 8)
        self.pos = self.pos + size
        return rows

    def skip(self, lengths: Integers) -> Spans:
        """Skip `lengths` bytes of each message; returns where they are."""
        spans = Spans(self.pos, lengths)
        self.pos = self.pos + lengths
        return spans

    def value(self) -> tuple[Bytes, Spans]:
        """The type code and the bytes of the next value, which must be neither compound nor described."""
        rows = self.look(5)
        codes = rows[:, 0]
        self.good &= _SIMPLE[codes]
        kinds = codes >> 4
        widths = _SIZE_WIDTHS[kinds]
        self.pos = self.pos + 1 + widths
        return codes, self.skip(
            np.where(widths == 4, big_endian(rows, 1, 4), np.where(widths == 1, rows[:, 1], _SIZES[kinds]))
        )

    def begin_sections(self) -> None:
        """To be called before `section` and `body_to`."""
        self._beginning = self.look(8)

    def section(self, code: int) -> Spans:
        """The value of the section `code`; of length 0 where another section is the next one."""
        rows = self._beginning
        present = self._descriptor(code)
        if not present.any():
            return Spans(self.pos, np.zeros_like(self.pos))
        form = rows[:, 3]
        small, wide = form & 0xFE == 0xC0, form & 0xFE == 0xD0
        self.good &= ~present | small | wide
        size = np.where(wide, big_endian(rows, 4, 4) + 5, rows[:, 4].astype(np.int64) + 2)
        self.pos = self.pos + np.where(present, 3, 0)
        spans = self.skip(np.where(present, size, 0))
        self._beginning = self.look(8)
        return spans

    def body_to(self, ends: Integers) -> Spans:
        """The bytes of the body, which must be the next section and the last: one data section, or a value that is
        binary or text."""
        rows = self._beginning
        form = rows[:, 3]
        wide = form & 0xF0 == 0xB0
        binary = form & 0xEF == 0xA0
        self.good &= (self._descriptor(DATA) & binary) | (self._descriptor(VALUE) & TEXT[form])
        self.pos = self.pos + np.where(wide, 8, 5)
        spans = self.skip(np.where(wide, big_endian(rows, 4, 4), rows[:, 4]))
        self.good &= self.pos == ends
        return spans

    def _descriptor(self, code: int) -> Booleans:
        rows = self._beginning
        present: Booleans = (rows[:, 0] == 0) & (rows[:, 1] == 0x53) & (rows[:, 2] == code)
        return present


def words(raw: bytes | bytearray) -> Words:
    """The bytes in words of eight, padded with zeros."""
    return np.frombuffer(raw + bytes(-len(raw) % 8), np.uint64)


def big_endian(rows: Bytes, at: int, width: int) -> Integers:
    """The integers in the columns `at` to `at` + `width` of bytes: signed if they have 8 bytes, else unsigned."""
    form = {1: "u1", 4: ">u4", 8: ">i8"}[width]
    return np.ascontiguousarray(rows[:, at : at + width]).view(form).ravel().astype(np.int64)


def integers(data: bytearray, codes: Integers, spans: Spans) -> Integers:
    """The integers in `spans`, which are as of `Scan.value`; all type `codes` are `INTEGER`."""
    left_aligned = big_endian(Scan(data, spans.starts).look(8), 0, 8)
    shift = 64 - 8 * spans.lengths
    unsigned = (left_aligned.view(np.uint64) >> shift.view(np.uint64)).view(np.int64)
    return np.where(_SIGNED[codes], left_aligned >> shift, unsigned)
