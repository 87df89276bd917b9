"""Encodes events as a batch for Event Hubs: a message with a data section per event, which contains the event's
message.

Sources: the AMQP 1.0 specification, part 3, and azure-eventhub's `EventDataBatch`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.eventhub.rows import COLUMN_ANNOTATIONS, EPOCH
from spark_ehbalance.eventhub.wire.frames import HEADER

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


def by_number(make: Callable[[int], bytes], numbers: Any) -> pa.Array:
    """An array of `make(number)`, called once per distinct number. Null for null."""
    distinct = pa.array(numbers).dictionary_encode()
    return pa.array(map(make, distinct.dictionary.to_pylist()), pa.large_binary()).take(distinct.indices)


def lengths(column: pa.Array) -> pa.Array:
    """The sizes of binary values."""
    import pyarrow.compute as pc  # a planner, which also imports this module, would spend a tenth of its start on it

    return pc.binary_length(column)


def joined(*columns: pa.Array) -> pa.Array:
    """The columns of large binary, concatenated row by row."""
    import pyarrow.compute as pc  # see above

    return pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))


def differ(column: pa.Array, other: pa.Array) -> Any:
    """Whether the values of each row differ."""
    import pyarrow.compute as pc  # see above

    return pc.not_equal(column, other).to_numpy(zero_copy_only=False)


def ends(column: pa.Array) -> Any:
    """The position of each value in the joined values, and their total size."""
    return np.concatenate(([0], np.cumsum(lengths(column).to_numpy())))


def encode_names(names: pa.Array) -> pa.Array:
    """Encoded names of properties."""
    return joined(by_number(lambda size: _prefix(_STRING, size), lengths(names)), names)


def encode_texts(texts: pa.Array, *, binary: bool) -> pa.Array:
    """Encoded strings, or binary values."""
    codes = _BINARY if binary else _STRING
    sizes = by_number(lambda size: _prefix(codes, size), lengths(texts))
    return joined(sizes.fill_null(_NULL), texts.fill_null(b""))


def regrouped(column: pa.Array, starts: Any) -> pa.Array:
    """Adjacent values, joined. Those of a row begin at its number in `starts`, and end at the next."""
    at, data = ends(column)[starts], column.buffers()[2] or pa.py_buffer(b"")
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(at) - 1, [None, pa.py_buffer(at), data])


def encode_properties(pairs: pa.Array, starts: Any) -> list[pa.Array]:
    """The sections of application properties, in two columns, from encoded pairs. `starts` is as in `regrouped`."""
    entries = regrouped(pairs, starts)

    def header(size_and_count: int) -> bytes:
        size, count = size_and_count >> 32, size_and_count & 0xFFFFFFFF
        return _PROPERTIES + _compound_prefix(_MAP, size, count) if count else b""

    return [by_number(header, (lengths(entries).to_numpy() << 32) + 2 * np.diff(starts)), entries]


def encode_events(sections: list[pa.Array], bodies: pa.Array) -> list[pa.Array]:
    """The data sections of a batch, in several columns. Each contains an event: its `sections` and its body, or null
    for a tombstone."""

    def header(size: int) -> bytes:
        return _DATA + _prefix(_BINARY, size)

    parts = [*sections, by_number(header, lengths(bodies)).fill_null(_NO_BODY), bodies.fill_null(b"")]
    return [by_number(header, sizes(parts)), *parts]


def sizes(columns: list[pa.Array]) -> Any:
    """The size of each row of several columns together."""
    return np.sum([lengths(column).to_numpy() for column in columns], axis=0)


def encode_annotations(key: str, annotations: Iterable[Pair] = ()) -> bytes:
    """The section of annotations, with the partition key; empty without any."""
    pairs = [*annotations, *([_sized(_SYMBOL, b"x-opt-partition-key") + _sized(_STRING, key.encode())] if key else ())]
    return _ANNOTATIONS + _compound(_MAP, b"".join(pairs), 2 * len(pairs)) if pairs else b""


def encode_system(pairs: Iterable[tuple[str, Any]], key: str) -> bytes:
    """The sections of annotations and message properties, from the source's column `systemProperties`, without
    annotations that the service sets. Raises ValueError for an invalid value of a message property."""
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
            annotations.append(_sized(_SYMBOL, name.encode()) + encode_value(value))
    encoded = [fields.get(name, _NULL) for name in _FIELDS] if fields else []
    while encoded and encoded[-1] == _NULL:
        encoded.pop()
    standard = _STANDARD + _compound(_LIST, b"".join(encoded), len(encoded)) if encoded else b""
    return encode_annotations(key, annotations) + standard


class EncodedBatch(NamedTuple):
    """An encoded message with several events, and their number."""

    events: int
    payload: bytes | memoryview


class Keyed(NamedTuple):
    """Events that share a key or have none: those from number `first` to `end` - 1 in `data`, where `starts` contains
    the start of each event. Their batches begin with the `envelope`."""

    envelope: bytes
    data: memoryview
    starts: Sequence[int]
    first: int
    end: int


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
    envelope, data, starts, first, end = keyed
    room = most - len(envelope)
    while first < end:
        after = max(first + 1, bisect_right(starts, starts[first] + room, first, end + 1) - 1)
        events = data[starts[first] : starts[after]]
        yield EncodedBatch(after - first, b"".join((envelope, events)) if envelope else events)
        first = after


def transfer_frames(
    channel: int, handle: int, number: int, payload: bytes | memoryview, largest: int
) -> Iterator[bytes]:
    """Split delivery `number` into frames of at most `largest` bytes."""
    delivery = b"\x00\x53\x14\xd0%b\x00\x00\x00\x06\x70%b\x70%b\xa0\x04%b\x70%b\x42"
    fields = delivery % tuple(map(_UINT.pack, (_TRANSFER_SIZE, handle, number, number, BATCH_FORMAT)))
    before = HEADER.size + len(fields) + 1  # the last byte indicates whether more frames follow
    room = largest - before
    for at in range(0, len(payload), room):
        part = payload[at : at + room]
        more = b"\x41" if at + room < len(payload) else b"\x42"
        yield HEADER.pack(before + len(part), 2, 0, channel) + fields + more + part


def encode_value(value: Any, *, small: bool = False) -> bytes:
    """An encoded value: None, bool, int (64 bits, signed or unsigned), float, str or bytes. If `small`, a number gets
    the smallest type that holds it."""
    if small and (number := _small_number(value)):
        return number
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


def _compound(codes: bytes, entries: bytes, count: int) -> bytes:
    """A map or a list."""
    return _compound_prefix(codes, len(entries), count) + entries


def _compound_prefix(codes: bytes, size: int, count: int) -> bytes:
    """The beginning of a map or a list with `count` entries of `size` bytes; its size includes the count."""
    if size + 1 <= _SHORT and count <= _SHORT:
        return bytes((codes[0], size + 1, count))
    return codes[1:] + (size + 4).to_bytes(4, "big") + count.to_bytes(4, "big")


def _small_number(value: Any) -> bytes | None:
    """The shortest encoding of a number; None if `value` is not a number, or if `encode_value` is as short."""
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
