"""The AMQP 1.0 type system: encodes Python values as bytes, and decodes them.

Subclasses such as `UInt`, `Symbol` and `Timestamp` stand for AMQP types that Python does not distinguish. A plain `int`
is an AMQP long, and a plain `float` is an AMQP double.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from spark_ehbalance.emulator.amqp.errors import DecodeError


class UByte(int): ...


class UShort(int): ...


class UInt(int): ...


class ULong(int): ...


class Int(int): ...


class Timestamp(int):
    """Milliseconds since 1970-01-01T00:00:00Z."""


class Symbol(str):
    """An ASCII name from a fixed vocabulary."""


class Array(list[Any]):
    """Elements of the same AMQP type."""


class Described(NamedTuple):
    """A value and the descriptor of its meaning."""

    descriptor: Any
    value: Any


# Python type -> code of the widest form, and the format of its bytes
_NUMBERS: dict[type, tuple[int, str]] = {
    UByte: (0x50, ">B"),
    UShort: (0x60, ">H"),
    UInt: (0x70, ">I"),
    ULong: (0x80, ">Q"),
    Int: (0x71, ">i"),
    int: (0x81, ">q"),
    Timestamp: (0x83, ">q"),
    float: (0x82, ">d"),
}
# Python type -> code of the one-byte form, its lowest value, and the first value above it
_SMALL = {UInt: (0x52, 0, 256), ULong: (0x53, 0, 256), Int: (0x54, -128, 128), int: (0x55, -128, 128)}
_TEXTS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    bytes: (0xB0, bytes),
    str: (0xB1, str.encode),
    Symbol: (0xB3, lambda name: name.encode("ascii")),
}


def encode(value: Any) -> bytes:
    """One value as AMQP bytes, in a compact form.

    Raises TypeError if AMQP has no such type, and ValueError if a number is out of its type's range.
    """
    kind = type(value)
    if value is None:
        return b"\x40"
    if kind is bool:
        return b"\x41" if value else b"\x42"
    if kind is Described:
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    if kind is uuid.UUID:
        return b"\x98" + bytes(value.bytes)
    if kind in _NUMBERS:
        return _encode_number(value, kind)
    if kind in _TEXTS:
        code, to_bytes = _TEXTS[kind]
        return _encode_sized(code, to_bytes(value))
    if kind is Array:
        return _encode_counted(0xF0, len(value), _encode_elements(value))
    if kind in (list, dict):
        parts = list(map(encode, value if kind is list else chain.from_iterable(value.items())))
        return _encode_counted(0xD0 if kind is list else 0xD1, len(parts), b"".join(parts))
    raise TypeError(f"AMQP has no type for {kind.__name__}")


def _encode_number(value: Any, kind: type) -> bytes:
    code, lowest, beyond = _SMALL.get(kind, (0, 0, 0))
    if lowest <= value < beyond:
        return bytes((code, value & 0xFF))
    code, format_ = _NUMBERS[kind]
    try:
        return bytes((code,)) + struct.pack(format_, value)
    except (struct.error, OverflowError):
        raise ValueError(f"{value!r} is out of range for AMQP type {kind.__name__}") from None


def _encode_sized(code: int, raw: bytes) -> bytes:
    """Encode a text in the form `code`, or in the form with a one-byte size if it is short enough."""
    if len(raw) < 256:
        return bytes((code - 0x10, len(raw))) + raw
    return struct.pack(">BI", code, len(raw)) + raw


def _encode_counted(code: int, count: int, body: bytes) -> bytes:
    if count < 256 and len(body) < 255:
        return bytes((code - 0x10, len(body) + 1, count)) + body
    return struct.pack(">BII", code, len(body) + 4, count) + body


def _encode_elements(values: Array) -> bytes:
    """Encode the constructor that an array's texts share, and the texts."""
    kinds = {type(value) for value in values}
    if not kinds:
        return b"\x40"
    if len(kinds) > 1 or not kinds <= _TEXTS.keys():
        raise TypeError("the elements of an array must be texts of one type")
    code, to_bytes = _TEXTS[kinds.pop()]
    return bytes((code,)) + b"".join(struct.pack(">I", len(raw)) + raw for raw in map(to_bytes, values))


def _unpacker(kind: Callable[[Any], Any], format_: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(format_).unpack
    return lambda raw: kind(unpack(raw)[0])


_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
# code -> decoder of the bytes after code and size
_SCALARS: dict[int, Callable[[bytes], Any]] = {
    0x45: lambda raw: [],
    0x51: _unpacker(int, ">b"),
    0x52: _unpacker(UInt, ">B"),
    0x53: _unpacker(ULong, ">B"),
    0x54: _unpacker(Int, ">b"),
    0x55: _unpacker(int, ">b"),
    0x56: lambda raw: raw != b"\0",
    0x61: _unpacker(int, ">h"),
    0x72: _unpacker(float, ">f"),
    0x73: lambda raw: raw.decode("utf-32-be"),
    0x98: lambda raw: uuid.UUID(bytes=raw),
    **dict.fromkeys((0x74, 0x84, 0x94), bytes),  # decimals
    **dict.fromkeys((0xA0, 0xB0), bytes),
    **dict.fromkeys((0xA1, 0xB1), bytes.decode),
    **dict.fromkeys((0xA3, 0xB3), lambda raw: Symbol(raw.decode("ascii"))),
    **{code: _unpacker(kind, format_) for kind, (code, format_) in _NUMBERS.items()},
}
_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_FIELD = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def skip(data: bytes, pos: int) -> int:
    """The end of the value at `pos`, without decoding it. Raises DecodeError if it is truncated."""
    while data[pos : pos + 1] == b"\0":
        if data[pos + 1 : pos + 2] == b"\0":
            raise DecodeError("a descriptor is itself described")
        pos = skip(data, pos + 1)
    if pos >= len(data):
        raise DecodeError("a value is missing")
    return _value_end(data, pos + 1, data[pos])


def _value_end(data: bytes, pos: int, code: int) -> int:
    """The end of a value of type `code` whose bytes start at `pos`. Raises DecodeError if the end is beyond `data`."""
    width = _WIDTHS.get(code >> 4)
    if width is None:
        field = _SIZE_FIELD.get(code >> 4)
        if field is None:
            raise DecodeError(f"unknown type 0x{code:02x}")
        width = field + int.from_bytes(data[pos : pos + field], "big")
    if pos + width > len(data):
        raise DecodeError(f"a value of type 0x{code:02x} is truncated")
    return pos + width


def decode(data: bytes, pos: int = 0) -> tuple[Any, int]:
    """The value at `pos`, and its end. Raises DecodeError if the value is malformed."""
    try:
        return _decode_value(data, pos)
    except UnicodeDecodeError as error:
        raise DecodeError(f"a text is not valid {error.encoding}") from None
    except RecursionError:
        raise DecodeError("values are nested too deeply") from None


def _decode_value(data: bytes, pos: int) -> tuple[Any, int]:
    if pos >= len(data):
        raise DecodeError("a value is missing")
    code = data[pos]
    if code:
        return _decode_typed(data, code, pos + 1)
    descriptor, pos = _decode_value(data, pos + 1)
    value, pos = _decode_value(data, pos)
    return Described(descriptor, value), pos


def _decode_typed(data: bytes, code: int, pos: int) -> tuple[Any, int]:
    if code in _CONSTANTS:
        return _CONSTANTS[code], pos
    end, kind = _value_end(data, pos, code), code >> 4
    if code in _SCALARS:
        return _SCALARS[code](data[pos + _SIZE_FIELD.get(kind, 0) : end]), end
    field = _SIZE_FIELD.get(kind, 0)
    start = pos + 2 * field
    count = int.from_bytes(data[pos + field : start], "big")
    if code & 0xEF not in (0xC0, 0xC1, 0xE0) or not 0 <= count <= end - start:
        raise DecodeError(f"unknown type 0x{code:02x}, or {count} elements in {end - start} bytes")
    values: list[Any] = []
    if kind in (0xE, 0xF):
        values, start = _decode_array(data, count, start) if count else (Array(), end)
    else:
        for _ in range(count):
            value, start = _decode_value(data, start)
            values.append(value)
    if start != end:
        raise DecodeError("the elements do not fill their list, map or array")
    return (_decode_map(values) if code & 0xEF == 0xC1 else values), end


def _decode_map(flat: list[Any]) -> dict[Any, Any]:
    try:
        return dict(zip(flat[::2], flat[1::2], strict=True))
    except (TypeError, ValueError):
        raise DecodeError("a map has a key without a value, or a key that is a collection") from None


def _decode_array(data: bytes, count: int, pos: int) -> tuple[Array, int]:
    """Decode the elements, which share the constructor at `pos`. Returns them and their end."""
    values, code, pos = Array(), data[pos], pos + 1
    for _ in range(count):
        value, pos = _decode_typed(data, code, pos)
        values.append(value)
    return values, pos
