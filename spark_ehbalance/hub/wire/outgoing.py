"""Encodes events as the message that Event Hubs takes as a batch: a data section for each event, which is a message.

Source: the AMQP 1.0 specification, part 3; what azure-eventhub's `EventDataBatch` makes of the same events.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

#: The message format of a batch.
BATCH_FORMAT = 0x80013700

#: The beginnings of sections: data, annotations, application properties, and a value that is null instead of data.
_DATA, _ANNOTATIONS, _PROPERTIES, _NO_BODY = b"\x00\x53\x75", b"\x00\x53\x72", b"\x00\x53\x74", b"\x00\x53\x77\x40"

#: Encoded sizes, above which numbers of four bytes are needed.
_SHORT = 255

_LONG, _DOUBLE = struct.Struct(">q"), struct.Struct(">d")

_BINARY, _STRING, _SYMBOL, _MAP = b"\xa0\xb0", b"\xa1\xb1", b"\xa3\xb3", b"\xc1\xd1"


class Encoder:
    """Encodes events; for one thread. It keeps what repeats, so that it should not live longer than some events do."""

    def __init__(self) -> None:
        self._plain: dict[int, bytes] = {}  # by the length of the body
        self._keys: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}

    def event(self, body: bytes | None, key: str | None, properties: Mapping[str, Any] | None) -> bytes:
        """The data section of one event of a batch; without a `body` it is a tombstone.

        Values of properties may be None, bool, int (of 64 bits), float, str or bytes.
        """
        if not key and not properties and body is not None:
            length = len(body)
            start = self._plain.get(length)
            if start is None:
                section = _DATA + _prefix(_BINARY, length)
                start = self._plain[length] = _DATA + _prefix(_BINARY, len(section) + length) + section
            return start + body
        message = (self._annotations(key) if key else b"") + (self._properties(properties) if properties else b"")
        message += _NO_BODY if body is None else _DATA + _prefix(_BINARY, len(body)) + body
        return _DATA + _prefix(_BINARY, len(message)) + message

    def _annotations(self, key: str) -> bytes:
        found = self._keys.get(key)
        if found is None:
            entries = _sized(_SYMBOL, b"x-opt-partition-key") + _sized(_STRING, key.encode())
            found = self._keys[key] = _ANNOTATIONS + _map(entries, 1)
        return found

    def _properties(self, properties: Mapping[str, Any]) -> bytes:
        entries = b"".join(self._text(name) + self._value(value) for name, value in properties.items())
        return _PROPERTIES + _map(entries, len(properties))

    def _text(self, text: str) -> bytes:
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = _sized(_STRING, text.encode())
        return found

    @staticmethod
    def _value(value: Any) -> bytes:
        if isinstance(value, str):
            return _sized(_STRING, value.encode())
        if value is None:
            return b"\x40"
        if isinstance(value, bool):
            return b"\x41" if value else b"\x42"
        if isinstance(value, int):
            return b"\x81" + _LONG.pack(value)
        if isinstance(value, float):
            return b"\x82" + _DOUBLE.pack(value)
        return _sized(_BINARY, value)


def batches(sections: Iterable[bytes], most: int) -> list[list[bytes]]:
    """The events in as few batches as their order allows, each of at most `most` bytes; a larger event is alone."""
    made: list[list[bytes]] = []
    room = 0
    for each in sections:
        if len(each) > room:
            made.append([])
            room = most
        made[-1].append(each)
        room -= len(each)
    return made


def _prefix(codes: bytes, length: int) -> bytes:
    """What stands before a value of this length; `codes` are those of the short and the long form."""
    if length <= _SHORT:
        return bytes((codes[0], length))
    return codes[1:] + length.to_bytes(4, "big")


def _sized(codes: bytes, value: bytes) -> bytes:
    return _prefix(codes, len(value)) + value


def _map(entries: bytes, pairs: int) -> bytes:
    """A map; its size counts the number of its entries too."""
    count = 2 * pairs
    if len(entries) + 1 <= _SHORT and count <= _SHORT:
        return bytes((_MAP[0], len(entries) + 1, count)) + entries
    return _MAP[1:] + (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + entries
