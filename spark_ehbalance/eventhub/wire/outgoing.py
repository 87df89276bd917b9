"""Encodes events as the message that Event Hubs takes as a batch: a data section for each event, which is a message.

Source: the AMQP 1.0 specification, part 3; what azure-eventhub's `EventDataBatch` makes of the same events.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any

#: The message format of a batch.
BATCH_FORMAT = 0x80013700

#: The beginnings of sections: data, annotations, application properties, and a value that is null instead of data.
_DATA, _ANNOTATIONS, _PROPERTIES, _NO_BODY = b"\x00\x53\x75", b"\x00\x53\x72", b"\x00\x53\x74", b"\x00\x53\x77\x40"

#: Encoded sizes, above which numbers of four bytes are needed.
_SHORT = 255

_LONG, _UNSIGNED, _DOUBLE = struct.Struct(">q"), struct.Struct(">Q"), struct.Struct(">d")

_BINARY, _STRING, _SYMBOL, _MAP = b"\xa0\xb0", b"\xa1\xb1", b"\xa3\xb3", b"\xc1\xd1"


#: A name of a property with its value, encoded.
Pair = bytes

#: Encoded pairs, and heads, that are kept because they repeat. Not more, as a sender can choose texts whose hashes
#: collide with those of all of them.
_MOST_KEPT = 256


class Encoder:
    """Encodes events; for one thread. It keeps what repeats, so that it should not live longer than some events do."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str | None, int], bytes] = {}  # by key and length of the body
        self._pairs: dict[tuple[str, str | bytes], Pair] = {}

    def head(self, body: bytes | None, key: str | None, properties: Collection[Pair] = ()) -> bytes:
        """What stands before its `body` in the data section of an event of a batch; without a body, a tombstone, it is
        the whole section."""
        if properties or body is None:
            return _head(body, key, properties)
        kind = (key, len(body))
        found = self._heads.get(kind)
        if found is None:
            found = _head(body, key, properties)
            if len(self._heads) < _MOST_KEPT:
                self._heads[kind] = found
        return found

    def pair(self, name: str, value: Any) -> Pair:
        """A property. Its value may be None, bool, int (of 64 bits, also unsigned), float, str or bytes."""
        if not isinstance(value, str | bytes):  # others are equal without being the same: True and 1
            return _sized(_STRING, name.encode()) + _value(value)
        found = self._pairs.get((name, value))
        if found is None:
            found = _sized(_STRING, name.encode()) + _value(value)
            if len(self._pairs) < _MOST_KEPT:
                self._pairs[name, value] = found
        return found


def batches(events: Sequence[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """The events in as few batches as their order allows, each of at most `most` bytes; a larger event is alone.
    `events` are heads and bodies in turn; yields how many events each batch has, and its payload."""
    begin, room = 0, most
    for at in range(0, len(events), 2):
        size = len(events[at]) + len(events[at + 1])
        if size > room and at > begin:
            yield (at - begin) // 2, b"".join(events[begin:at])
            begin, room = at, most
        room -= size
    if begin < len(events):
        yield (len(events) - begin) // 2, b"".join(events[begin:])


def _head(body: bytes | None, key: str | None, properties: Collection[Pair]) -> bytes:
    before = b""
    if key:
        entry = _sized(_SYMBOL, b"x-opt-partition-key") + _sized(_STRING, key.encode())
        before += _ANNOTATIONS + _map(entry, 1)
    if properties:
        before += _PROPERTIES + _map(b"".join(properties), len(properties))
    if body is None:
        return _DATA + _sized(_BINARY, before + _NO_BODY)
    before += _DATA + _prefix(_BINARY, len(body))
    return _DATA + _prefix(_BINARY, len(before) + len(body)) + before


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _sized(_STRING, value.encode())
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return b"\x80" + _UNSIGNED.pack(value) if value >> 63 > 0 else b"\x81" + _LONG.pack(value)
    if isinstance(value, float):
        return b"\x82" + _DOUBLE.pack(value)
    return _sized(_BINARY, value)


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
