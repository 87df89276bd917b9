"""Encodes events as the message that Event Hubs takes as a batch: a data section for each event, which is a message.

Source: the AMQP 1.0 specification, part 3; what azure-eventhub's `EventDataBatch` makes of the same events.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from spark_ehbalance.eventhub.rows import COLUMN_ANNOTATIONS, EPOCH
from spark_ehbalance.eventhub.wire.frames import HEADER

_K = TypeVar("_K")

#: The message format of a batch.
BATCH_FORMAT = 0x80013700

#: The beginnings of sections: data, annotations, properties of the message and of the application, and a value that is
#: null instead of data.
_DATA, _ANNOTATIONS, _STANDARD = b"\x00\x53\x75", b"\x00\x53\x72", b"\x00\x53\x73"
_PROPERTIES, _NO_BODY = b"\x00\x53\x74", b"\x00\x53\x77\x40"

#: Encoded sizes, above which numbers of four bytes are needed.
_SHORT = 255

#: The size of the fields of a transfer, with their count.
_TRANSFER_SIZE = 4 + 5 + 5 + 6 + 5 + 1 + 1

_LONG, _UNSIGNED, _UINT, _DOUBLE, _FLOAT = map(struct.Struct, (">q", ">Q", ">I", ">d", ">f"))

#: The largest number that 32 bits of floating point hold.
_MOST_FLOAT = 3.4028234663852886e38

#: The codes of AMQP's signed numbers by width in bytes. The code below each is that of the unsigned number.
_SIGNED = ((1, 0x51), (2, 0x61), (4, 0x71))

_NULL = b"\x40"

_BINARY, _STRING, _SYMBOL = b"\xa0\xb0", b"\xa1\xb1", b"\xa3\xb3"
_LIST, _MAP = b"\xc0\xd0", b"\xc1\xd1"

#: What the service sets itself.
_OF_SERVICE = frozenset(map(bytes.decode, (*COLUMN_ANNOTATIONS, EPOCH)))


#: A name of a property with its value, encoded.
Pair = bytes

#: What may be on its way together: a third of the messages for which the service grants credit on a link to the hub,
#: and of bytes what also a slow connection carries before its answers are waited for.
_MOST_TOGETHER = 100
_MOST_BYTES_TOGETHER = 1 << 20


class System(NamedTuple):
    """What an event has beside body, key and the application's properties, encoded."""

    annotations: Collection[Pair] = ()
    properties: bytes = b""  # the section; empty for none


class _Kept(dict[_K, bytes]):
    """Encoded values that repeat. Not many, as a sender can choose texts whose hashes collide with all of them."""

    def add(self, key: _K, value: bytes) -> bytes:
        """Keep a value if there is room. Returns it."""
        if len(self) < 256:
            self[key] = value
        return value


class Encoder:
    """Encodes events; for one thread. It keeps what repeats, so that it should not live longer than some events do."""

    def __init__(self) -> None:
        self._heads = _Kept[tuple[str | None, int]]()  # by key and length of the body
        self._pairs = _Kept[tuple[str, str | bytes]]()
        self._envelopes = _Kept[str]()

    def head(
        self, body: bytes | None, key: str | None, properties: Collection[Pair] = (), system: System | None = None
    ) -> bytes:
        """What stands before its `body` in the data section of an event of a batch; without a body, a tombstone, it is
        the whole section."""
        if properties or body is None or system:
            return _head(body, key, properties, system or System())
        kind = (key, len(body))
        return self._heads.get(kind) or self._heads.add(kind, _head(body, key, (), System()))

    def envelope(self, key: str | None) -> bytes:
        """What stands before the events of a batch, by which the hub chooses their partition; empty without a key."""
        if not key:
            return b""
        return self._envelopes.get(key) or self._envelopes.add(key, _ANNOTATIONS + _map([_key_pair(key)]))

    def pair(self, name: str, value: Any) -> Pair:
        """A property. Its value may be None, bool, int (of 64 bits, also unsigned), float, str or bytes."""
        if isinstance(value, str | bytes) and (kept := self._pairs.get((name, value))):
            return kept
        made = _sized(_STRING, name.encode()) + _value(value)
        # others are equal without being the same, True and 1
        return self._pairs.add((name, value), made) if isinstance(value, str | bytes) else made


def small_pair(name: str, value: Any) -> Pair:
    """As `Encoder.pair`, with a number in as few bytes as hold it, whatever type of number that is."""
    return _sized(_STRING, name.encode()) + (_small_number(value) or _value(value))


def encode_system(pairs: Iterable[tuple[str, Any]]) -> System:
    """The pairs of the source's column `systemProperties`, without those that the service sets. Raises ValueError for a
    value that a property of messages cannot have."""
    annotations, fields = list[Pair](), dict[str, bytes]()
    for name, value in pairs:
        if name in _FIELDS:
            try:
                if isinstance(value, bool):  # which Python takes for a number
                    raise TypeError
                fields[name] = _NULL if value is None else _FIELDS[name](value)
            except (AttributeError, TypeError, struct.error):
                raise ValueError(f"its {name} has a value of another type than AMQP allows") from None
        elif name not in _OF_SERVICE:
            annotations.append(_sized(_SYMBOL, name.encode()) + _value(value))
    encoded = [fields.get(name, _NULL) for name in _FIELDS] if fields else []
    while encoded and encoded[-1] == _NULL:
        encoded.pop()
    return System(annotations, _STANDARD + _compound(_LIST, b"".join(encoded), len(encoded)) if encoded else b"")


class Batch(NamedTuple):
    """Events that are sent as one message: how many they are, and the message."""

    events: int
    payload: bytes


class Keyed(NamedTuple):
    """Events with one key, or without any: their heads and bodies in turn, and what stands before them in a batch."""

    envelope: bytes
    events: list[bytes]


def windows(keyed: Iterable[Keyed], most: int) -> Iterator[list[Batch]]:
    """The events of each key in as few batches of at most `most` bytes as their order allows; a larger event is alone.
    The batches of a window may be on their way together: none has the key of another, so that the order of a key's
    events does not depend on which of them arrives first."""
    waiting = [_batches(each, most) for each in keyed]
    while waiting:
        more, window, size = list[Iterator[Batch]](), list[Batch](), 0
        for batches in waiting:
            batch = next(batches, None)
            if batch is None:
                continue
            more.append(batches)
            if window and (len(window) == _MOST_TOGETHER or size + len(batch.payload) > _MOST_BYTES_TOGETHER):
                yield window
                window, size = [], 0
            window.append(batch)
            size += len(batch.payload)
        if window:
            yield window
        waiting = more


def _batches(keyed: Keyed, most: int) -> Iterator[Batch]:
    envelope, events = keyed
    begin, room = 0, most - len(envelope)
    for at in range(0, len(events), 2):
        size = len(events[at]) + len(events[at + 1])
        if size > room and at > begin:
            yield Batch((at - begin) // 2, b"".join((envelope, *events[begin:at])))
            begin, room = at, most - len(envelope)
        room -= size
    if begin < len(events):
        yield Batch((len(events) - begin) // 2, b"".join((envelope, *events[begin:])))


def transfer(channel: int, handle: int, number: int, payload: bytes, largest: int) -> Iterator[bytes]:
    """The frames, of at most `largest` bytes, of the delivery of a batch with this number."""
    delivery = b"\x00\x53\x14\xd0%b\x00\x00\x00\x06\x70%b\x70%b\xa0\x04%b\x70%b\x42"
    fields = delivery % tuple(map(_UINT.pack, (_TRANSFER_SIZE, handle, number, number, BATCH_FORMAT)))
    before = HEADER.size + len(fields) + 1  # whether more frames follow
    room = largest - before
    for at in range(0, len(payload), room):
        part = payload[at : at + room]
        more = b"\x41" if at + room < len(payload) else b"\x42"
        yield HEADER.pack(before + len(part), 2, 0, channel) + fields + more + part


def _head(body: bytes | None, key: str | None, properties: Collection[Pair], system: System) -> bytes:
    annotations = list(system.annotations)
    if key:
        annotations.append(_key_pair(key))
    before = _ANNOTATIONS + _map(annotations) if annotations else b""
    before += system.properties
    if properties:
        before += _PROPERTIES + _map(properties)
    if body is None:
        return _DATA + _sized(_BINARY, before + _NO_BODY)
    before += _DATA + _prefix(_BINARY, len(body))
    return _DATA + _prefix(_BINARY, len(before) + len(body)) + before


def _key_pair(key: str) -> Pair:
    return _sized(_SYMBOL, b"x-opt-partition-key") + _sized(_STRING, key.encode())


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _sized(_STRING, value.encode())
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        if -128 <= value <= 127:
            return bytes((0x55, value & 0xFF))
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


def _map(pairs: Collection[Pair]) -> bytes:
    return _compound(_MAP, b"".join(pairs), 2 * len(pairs))


def _compound(codes: bytes, entries: bytes, count: int) -> bytes:
    """A map or a list; its size counts the number of its entries too."""
    if len(entries) + 1 <= _SHORT and count <= _SHORT:
        return bytes((codes[0], len(entries) + 1, count)) + entries
    return codes[1:] + (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + entries


def _small_number(value: Any) -> bytes | None:
    """The shortest encoding of a number; None if it is none, or no type is shorter than those of `_value`."""
    if isinstance(value, float):
        single = _FLOAT.pack(value) if abs(value) <= _MOST_FLOAT else b""
        return b"\x72" + single if single and _FLOAT.unpack(single)[0] == value else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if not value:
        return b"\x43"
    for width, code in _SIGNED:
        if -(1 << (8 * width - 1)) <= value < 1 << (8 * width):
            unsigned = value >= 1 << (8 * width - 1)
            return bytes((code - unsigned,)) + value.to_bytes(width, "big", signed=not unsigned)
    return None


def _text(value: str) -> bytes:
    return _sized(_STRING, value.encode())


def _symbol(value: str) -> bytes:
    return _sized(_SYMBOL, value.encode())


def _binary(value: str | bytes) -> bytes:
    return _sized(_BINARY, value.encode() if isinstance(value, str) else value)


def _time(value: int) -> bytes:
    return b"\x83" + _LONG.pack(value)


def _uint(value: int) -> bytes:
    return b"\x70" + _UINT.pack(value)


def _id(value: str | bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes((0x53, value)) if 0 <= value <= _SHORT else b"\x80" + _UNSIGNED.pack(value)
    return _text(value) if isinstance(value, str) else _sized(_BINARY, value)


#: The properties of a message in their order, with what encodes each.
_FIELDS: dict[str, Callable[[Any], bytes]] = {
    "message-id": _id,
    "user-id": _binary,
    "to": _text,
    "subject": _text,
    "reply-to": _text,
    "correlation-id": _id,
    "content-type": _symbol,
    "content-encoding": _symbol,
    "absolute-expiry-time": _time,
    "creation-time": _time,
    "group-id": _text,
    "group-sequence": _uint,
    "reply-to-group-id": _text,
}
