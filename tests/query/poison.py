"""Unreadable events, encoded as the hub would deliver them."""

from __future__ import annotations

from spark_ehbalance.emulator.message import EncodedEvent
from tests.eventhub.encodings import compound, long, section, text

_BODY = section(0x75, text(b"body", 0xA0))


def _with_property(value: bytes) -> EncodedEvent:
    return EncodedEvent(b"", 0, section(0x74, compound(0xC1, 2, text(b"p") + value, True)) + _BODY)


#: Unreadable events whose sequence number is readable.
NUMBERED = {
    "unknown type": _with_property(b"\xff"),
    "map as key": _with_property(compound(0xC1, 2, compound(0xC1, 0, b"") + b"\x41")),
    "too deep": _with_property(b"\xc0\x02\x01" * 5000 + b"\x41"),
    "cut off": EncodedEvent(b"", 0, section(0x74, compound(0xC1, 2, text(b"p")))),
    "unknown annotation": EncodedEvent(text(b"x-bad", 0xA3) + b"\xa5\x01x", 2, _BODY),
}

#: Unreadable events whose sequence number is unreadable too.
UNNUMBERED = EncodedEvent(text(b"x-bad", 0xA3) + b"\x3f", 2, _BODY)


def two_keys_with_the_same_text() -> EncodedEvent:
    pairs = text(b"1") + text(b"a") + long(1) + text(b"b")
    return EncodedEvent(b"", 0, section(0x74, compound(0xC1, 4, pairs)) + _BODY)
