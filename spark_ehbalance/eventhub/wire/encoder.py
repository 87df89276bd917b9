"""Encodes events as a batch for Event Hubs: a message with a data section per event, which contains the event's
message.

Sources: the AMQP 1.0 specification, part 3, and azure-eventhub's `EventDataBatch`.
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

#: First bytes of the sections for data, annotations, message properties and application properties; and a section with
#: a null value, which replaces the data section.
_DATA, _ANNOTATIONS, _STANDARD = b"\x00\x53\x75", b"\x00\x53\x72", b"\x00\x53\x73"
_PROPERTIES, _NO_BODY = b"\x00\x53\x74", b"\x00\x53\x77\x40"

#: Maximum size or count that is encoded in one byte; larger ones need four.
_SHORT = 255

#: Maximum size of a transfer's fields, including their count.
_TRANSFER_SIZE = 4 + 5 + 5 + 6 + 5 + 1 + 1

_LONG, _UNSIGNED, _UINT, _DOUBLE, _FLOAT = map(struct.Struct, (">q", ">Q", ">I", ">d", ">f"))

#: The largest 32-bit floating-point number.
_MAX_FLOAT = 3.4028234663852886e38

#: Widths in bytes and type codes of signed integers. The code of the unsigned integer is one less.
_SIGNED = ((1, 0x51), (2, 0x61), (4, 0x71))

_NULL = b"\x40"

_BINARY, _STRING, _SYMBOL = b"\xa0\xb0", b"\xa1\xb1", b"\xa3\xb3"
_LIST, _MAP = b"\xc0\xd0", b"\xc1\xd1"

#: Annotations set by the service.
_SERVICE_ANNOTATIONS = frozenset(map(bytes.decode, (*COLUMN_ANNOTATIONS, EPOCH)))


#: An encoded property name and value.
Pair = bytes

#: Maximum number of batches and bytes of a window: a third of the messages for which the service grants credit on a
#: link to the hub, and as many bytes as a slow connection transfers before acknowledgements are due.
_MAX_WINDOW_BATCHES = 100
_MAX_WINDOW_BYTES = 1 << 20


class SystemProperties(NamedTuple):
    """Encoded annotations and message properties of an event."""

    annotations: Collection[Pair] = ()
    properties: bytes = b""  # the section; empty if there are no properties


class _Cache(dict[_K, bytes]):
    """Cache of encoded values. Its size is limited, because a sender could choose keys whose hashes collide."""

    def add(self, key: _K, value: bytes) -> bytes:
        """Cache `value` if there is room, and return it."""
        if len(self) < 256:
            self[key] = value
        return value


class Encoder:
    """Encodes events. Not thread-safe. It should be short-lived, because it caches repeated parts."""

    def __init__(self) -> None:
        self._heads = _Cache[tuple[str | None, int]]()  # by key and body length
        self._pairs = _Cache[tuple[str, str | bytes]]()
        self._envelopes = _Cache[str]()

    def head(
        self,
        body: bytes | None,
        key: str | None,
        properties: Collection[Pair] = (),
        system: SystemProperties | None = None,
    ) -> bytes:
        """The data section of an event in a batch up to the event's `body`; for a tombstone, which has no body, the
        whole section."""
        if properties or body is None or system:
            return _head(body, key, properties, system or SystemProperties())
        kind = (key, len(body))
        return self._heads.get(kind) or self._heads.add(kind, _head(body, key, (), SystemProperties()))

    def envelope(self, key: str | None) -> bytes:
        """The beginning of a batch whose partition the hub chooses by `key`; empty if there is no key."""
        if not key:
            return b""
        return self._envelopes.get(key) or self._envelopes.add(key, _ANNOTATIONS + _map([_key_pair(key)]))

    def pair(self, name: str, value: Any) -> Pair:
        """An encoded property. `value` is None, bool, int (64 bits, signed or unsigned), float, str or bytes."""
        if isinstance(value, str | bytes) and (cached := self._pairs.get((name, value))):
            return cached
        pair = _sized(_STRING, name.encode()) + _value(value)
        # values of other types can be equal but need different encodings, such as True and 1
        return self._pairs.add((name, value), pair) if isinstance(value, str | bytes) else pair


def small_pair(name: str, value: Any) -> Pair:
    """Like `Encoder.pair`, but encodes a number in the smallest type that holds it."""
    return _sized(_STRING, name.encode()) + (_small_number(value) or _value(value))


def encode_system(pairs: Iterable[tuple[str, Any]]) -> SystemProperties:
    """Encode the source's column `systemProperties`, without annotations that the service sets. Raises ValueError for
    an invalid value of a message property."""
    annotations, fields = list[Pair](), dict[str, bytes]()
    for name, value in pairs:
        if name in _FIELDS:
            try:
                if isinstance(value, bool):  # a subclass of int
                    raise TypeError
                fields[name] = _NULL if value is None else _FIELDS[name](value)
            except (AttributeError, TypeError, struct.error):
                raise ValueError(f"the type of its {name} is not allowed by AMQP") from None
        elif name not in _SERVICE_ANNOTATIONS:
            annotations.append(_sized(_SYMBOL, name.encode()) + _value(value))
    encoded = [fields.get(name, _NULL) for name in _FIELDS] if fields else []
    while encoded and encoded[-1] == _NULL:
        encoded.pop()
    return SystemProperties(
        annotations, _STANDARD + _compound(_LIST, b"".join(encoded), len(encoded)) if encoded else b""
    )


class EncodedBatch(NamedTuple):
    """An encoded message with several events, and their number."""

    events: int
    payload: bytes


class Keyed(NamedTuple):
    """Events that share a key or have none, as alternating heads and bodies; and the beginning of their batches."""

    envelope: bytes
    events: list[bytes]


def windows(keyed: Iterable[Keyed], most: int) -> Iterator[list[EncodedBatch]]:
    """Pack the events of each key into as few batches of at most `most` bytes as their order allows; a larger event
    gets its own batch. The batches of a window have distinct keys, so they can be in flight together without reordering
    the events of a key."""
    waiting = [_batches(events, most) for events in keyed]
    while waiting:
        more, window, size = list[Iterator[EncodedBatch]](), list[EncodedBatch](), 0
        for batches in waiting:
            batch = next(batches, None)
            if batch is None:
                continue
            more.append(batches)
            if window and (len(window) == _MAX_WINDOW_BATCHES or size + len(batch.payload) > _MAX_WINDOW_BYTES):
                yield window
                window, size = [], 0
            window.append(batch)
            size += len(batch.payload)
        if window:
            yield window
        waiting = more


def _batches(keyed: Keyed, most: int) -> Iterator[EncodedBatch]:
    envelope, events = keyed
    begin, room = 0, most - len(envelope)
    for at in range(0, len(events), 2):
        size = len(events[at]) + len(events[at + 1])
        if size > room and at > begin:
            yield EncodedBatch((at - begin) // 2, b"".join((envelope, *events[begin:at])))
            begin, room = at, most - len(envelope)
        room -= size
    if begin < len(events):
        yield EncodedBatch((len(events) - begin) // 2, b"".join((envelope, *events[begin:])))


def transfer_frames(channel: int, handle: int, number: int, payload: bytes, largest: int) -> Iterator[bytes]:
    """Split delivery `number` into frames of at most `largest` bytes."""
    delivery = b"\x00\x53\x14\xd0%b\x00\x00\x00\x06\x70%b\x70%b\xa0\x04%b\x70%b\x42"
    fields = delivery % tuple(map(_UINT.pack, (_TRANSFER_SIZE, handle, number, number, BATCH_FORMAT)))
    before = HEADER.size + len(fields) + 1  # the last byte indicates whether more frames follow
    room = largest - before
    for at in range(0, len(payload), room):
        part = payload[at : at + room]
        more = b"\x41" if at + room < len(payload) else b"\x42"
        yield HEADER.pack(before + len(part), 2, 0, channel) + fields + more + part


def _head(body: bytes | None, key: str | None, properties: Collection[Pair], system: SystemProperties) -> bytes:
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
    """The type code and the size of a value of this length. `codes` are the type codes of the short and the long
    form."""
    if length <= _SHORT:
        return bytes((codes[0], length))
    return codes[1:] + length.to_bytes(4, "big")


def _sized(codes: bytes, value: bytes) -> bytes:
    return _prefix(codes, len(value)) + value


def _map(pairs: Collection[Pair]) -> bytes:
    return _compound(_MAP, b"".join(pairs), 2 * len(pairs))


def _compound(codes: bytes, entries: bytes, count: int) -> bytes:
    """A map or a list; its size includes the count."""
    if len(entries) + 1 <= _SHORT and count <= _SHORT:
        return bytes((codes[0], len(entries) + 1, count)) + entries
    return codes[1:] + (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + entries


def _small_number(value: Any) -> bytes | None:
    """The shortest encoding of a number; None if `value` is not a number, or if the result of `_value` is as short."""
    if isinstance(value, float):
        single = _FLOAT.pack(value) if abs(value) <= _MAX_FLOAT else b""
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


#: The message properties in wire order, with their encoders.
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
