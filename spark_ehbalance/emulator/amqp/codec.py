"""The AMQP 1.0 type system: Python values to bytes and back.

Subclasses such as `UInt`, `Symbol` and `Timestamp` stand for AMQP types that Python does not distinguish, so that a
decoded value is encoded with the same types again. A plain `int` is encoded as an AMQP long.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from spark_ehbalance.emulator.amqp.errors import DecodeError

MAX_DEPTH = 32  # no client nests deeper; Python's stack ends near 1,000
MAX_ITEMS = 100_000  # values in one decode call: about 0.1 s of work, and more than a 1 MB event of small maps has
_TOO_MANY = f"a value contains more than {MAX_ITEMS} values"
MAX_ODD_KEYS = 256  # of a map, neither text nor binary: a sender can choose numbers so that each is compared with all
MAX_EMPTY_ITEMS = 256  # array elements of zero bytes cost the sender nothing, so their number needs a limit


class UByte(int): ...


class UShort(int): ...


class UInt(int): ...


class ULong(int): ...


class Byte(int): ...


class Short(int): ...


class Int(int): ...


class Long(int): ...


class Timestamp(int):
    """Milliseconds since 1970-01-01T00:00:00Z."""


class Float32(float): ...


class Char(str): ...


class Symbol(str):
    """An ASCII name from a fixed vocabulary."""


class Decimal(bytes):
    """A decimal of 4, 8 or 16 bytes, undecoded."""


class Array(list[Any]):
    """Elements of the same AMQP type."""


class Described(NamedTuple):
    """A value and the descriptor of its meaning."""

    descriptor: Any
    value: Any


_TEXT_HEADER = struct.Struct(">BI")
_SIZE_AND_COUNT = struct.Struct(">II")

# Python type -> code of the widest form, and the format of its bytes
_NUMBERS: dict[type, tuple[int, str]] = {
    UByte: (0x50, ">B"),
    UShort: (0x60, ">H"),
    UInt: (0x70, ">I"),
    ULong: (0x80, ">Q"),
    Byte: (0x51, ">b"),
    Short: (0x61, ">h"),
    Int: (0x71, ">i"),
    Long: (0x81, ">q"),
    int: (0x81, ">q"),
    Timestamp: (0x83, ">q"),
    Float32: (0x72, ">f"),
    float: (0x82, ">d"),
}
# Python type -> code of the form of one byte, the lowest number for which there is one, and the first too high one
_SMALL = {
    UInt: (0x52, 0, 256),
    ULong: (0x53, 0, 256),
    Int: (0x54, -128, 128),
    Long: (0x55, -128, 128),
    int: (0x55, -128, 128),
}
_TEXTS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    bytes: (0xA0, bytes),
    str: (0xA1, str.encode),
    Symbol: (0xA3, lambda name: name.encode("ascii")),
}
_ZERO = {UInt: b"\x43", ULong: b"\x44"}
_DECIMALS = {4: b"\x74", 8: b"\x84", 16: b"\x94"}


def encode(value: Any) -> bytes:
    """One value as AMQP bytes, in the most compact form.

    Raises TypeError if AMQP has no such type, ValueError for a number out of its type's range.
    """
    kind = type(value)
    if value is None:
        return b"\x40"
    if kind is bool:
        return b"\x41" if value else b"\x42"
    if kind is Described:
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    if kind in _SMALL:
        code, lowest, beyond = _SMALL[kind]
        if lowest <= value < beyond:
            return _ZERO[kind] if value == 0 and kind in _ZERO else bytes((code, value & 0xFF))
    if kind in _TEXTS:
        code, to_bytes = _TEXTS[kind]
        raw = to_bytes(value)
        return (b"%c%c" % (code, len(raw)) if len(raw) < 256 else _TEXT_HEADER.pack(code + 0x10, len(raw))) + raw
    constructor, payload = _wide_form(value)
    code, size = constructor[0], len(payload)
    if code >> 4 == 0xD and size < 8 + 255 and payload[4:7] == b"\0\0\0":
        return b"%c%c%b" % (code - 0x10, size - 7, payload[7:])
    return constructor + payload


def _wide_form(value: Any) -> tuple[bytes, bytes]:
    """Constructor and payload in the widest form, in which all elements of an array share the constructor."""
    kind = type(value)
    if kind not in _FORMS:
        raise TypeError(f"AMQP has no type for {kind.__name__}")
    return _FORMS[kind](value)


def _packer(code: int, format_: str) -> Callable[[Any], tuple[bytes, bytes]]:
    constructor, packer = bytes((code,)), struct.Struct(format_)

    def pack(value: Any) -> tuple[bytes, bytes]:
        try:
            return constructor, packer.pack(value)
        except (struct.error, OverflowError):
            raise ValueError(f"{value!r} is out of range for AMQP type {type(value).__name__}") from None

    return pack


def _text(value: Any) -> tuple[bytes, bytes]:
    code, to_bytes = _TEXTS[type(value)]
    header = _TEXT_HEADER.pack(code + 0x10, len(raw := to_bytes(value)))
    return header[:1], header[1:] + raw


def _compound(values: Iterable[Any]) -> bytes:
    parts = list(map(encode, values))
    body = b"".join(parts)
    return _SIZE_AND_COUNT.pack(len(body) + 4, len(parts)) + body


def _array(values: Array) -> bytes:
    forms = [_wide_form(value) for value in values] or [(b"\x40", b"")]
    if len({constructor for constructor, _ in forms}) != 1:
        raise TypeError("the elements of an AMQP array must have one type")
    body = forms[0][0] + b"".join(payload for _, payload in forms)
    return _SIZE_AND_COUNT.pack(len(body) + 4, len(values)) + body


def _described(value: Described) -> tuple[bytes, bytes]:
    constructor, payload = _wide_form(value.value)
    return b"\x00" + encode(value.descriptor) + constructor, payload


_FORMS: dict[type, Callable[[Any], tuple[bytes, bytes]]] = {
    type(None): lambda value: (b"\x40", b""),
    bool: lambda value: (b"\x56", bytes((value,))),
    Char: lambda value: (b"\x73", value.encode("utf-32-be")),
    uuid.UUID: lambda value: (b"\x98", value.bytes),
    Decimal: lambda value: (_DECIMALS[len(value)], bytes(value)),
    list: lambda value: (b"\xd0", _compound(value)),
    dict: lambda value: (b"\xd1", _compound(chain.from_iterable(value.items()))),
    Array: lambda value: (b"\xf0", _array(value)),
    Described: _described,
    **dict.fromkeys(_TEXTS, _text),
    **{kind: _packer(*form) for kind, form in _NUMBERS.items()},
}


def _unpacker(kind: Callable[[Any], Any], format_: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(format_).unpack
    return lambda raw: kind(unpack(raw)[0])


_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
# code -> what makes a value of the bytes after code and size
_SCALARS: dict[int, Callable[[bytes], Any]] = {
    0x45: lambda raw: [],
    0x52: _unpacker(UInt, ">B"),
    0x53: _unpacker(ULong, ">B"),
    0x54: _unpacker(Int, ">b"),
    0x55: _unpacker(Long, ">b"),
    0x56: lambda raw: raw != b"\0",
    0x73: lambda raw: Char(raw.decode("utf-32-be")),
    0x98: lambda raw: uuid.UUID(bytes=raw),
    **dict.fromkeys((0x74, 0x84, 0x94), Decimal),
    **dict.fromkeys((0xA0, 0xB0), bytes),
    **dict.fromkeys((0xA1, 0xB1), bytes.decode),
    **dict.fromkeys((0xA3, 0xB3), lambda raw: Symbol(raw.decode("ascii"))),
    **{code: _unpacker(kind, format_) for kind, (code, format_) in _NUMBERS.items() if kind is not int},
}
_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_FIELD = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def skip(data: bytes, pos: int) -> int:
    """The end of the value at `pos`, which is not decoded. Raises DecodeError if it is truncated."""
    for _ in range(MAX_DEPTH):
        if pos >= len(data):
            raise DecodeError("a value is missing")
        code = data[pos]
        if code:
            return _end(data, pos + 1, code, len(data))
        if data[pos + 1 : pos + 2] == b"\0":
            raise DecodeError("a descriptor is itself described")
        pos = skip(data, pos + 1)
    raise DecodeError(f"values are nested more than {MAX_DEPTH} deep")


def _end(data: bytes, pos: int, code: int, limit: int) -> int:
    """The end of a value of type `code` whose bytes start at `pos`. Raises DecodeError if that is beyond `limit`."""
    width = _WIDTHS.get(code >> 4)
    if width is None:
        field = _SIZE_FIELD.get(code >> 4)
        if field is None:
            raise DecodeError(f"unknown type 0x{code:02x}")
        width = field + int.from_bytes(data[pos : pos + field], "big")
    if pos + width > limit:
        raise DecodeError(f"a value of type 0x{code:02x} is truncated")
    return pos + width


def decode(data: bytes, pos: int = 0) -> tuple[Any, int]:
    """The value at `pos` and its end. Raises DecodeError if it is malformed or exceeds a limit."""
    try:
        return _Decoder(data).value(pos, len(data), 0)
    except UnicodeDecodeError as error:
        raise DecodeError(f"a text is not valid {error.encoding}") from None


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items_left = MAX_ITEMS

    def value(self, pos: int, limit: int, depth: int) -> tuple[Any, int]:
        self._items_left -= 1
        if self._items_left < 0:
            raise DecodeError(_TOO_MANY)
        if depth > MAX_DEPTH:
            raise DecodeError(f"values are nested more than {MAX_DEPTH} deep")
        if pos >= limit:
            raise DecodeError("a value is missing")
        code = self._data[pos]
        if code:
            return self._typed(code, pos + 1, limit, depth)
        descriptor, pos = self.value(pos + 1, limit, depth + 1)
        value, pos = self.value(pos, limit, depth + 1)
        return Described(descriptor, value), pos

    def _typed(self, code: int, pos: int, limit: int, depth: int) -> tuple[Any, int]:
        if code in _CONSTANTS:
            return _CONSTANTS[code], pos
        end = _end(self._data, pos, code, limit)
        kind = code >> 4
        if code in _SCALARS:
            return _SCALARS[code](self._data[pos + _SIZE_FIELD.get(kind, 0) : end]), end
        if code not in _COMPOUNDS:
            raise DecodeError(f"unknown type 0x{code:02x}")
        field = _SIZE_FIELD[kind]
        start = pos + 2 * field
        if start > end:
            raise DecodeError(f"a value of type 0x{code:02x} is too short for its count")
        count = int.from_bytes(self._data[pos + field : start], "big")
        return _COMPOUNDS[code](self, count, start, end, depth + 1), end

    def _list(self, count: int, pos: int, end: int, depth: int) -> list[Any]:
        if count > end - pos:
            raise DecodeError(f"{count} elements in {end - pos} bytes")
        values = []
        for _ in range(count):
            value, pos = self.value(pos, end, depth)
            values.append(value)
        if pos != end:
            raise DecodeError("bytes are left after the last element")
        return values

    def _map(self, count: int, pos: int, end: int, depth: int) -> dict[Any, Any]:
        flat = self._list(count, pos, end, depth)
        if len(flat) % 2:
            raise DecodeError("a map has a key without a value")
        if sum(not isinstance(key, (str, bytes)) for key in flat[::2]) > MAX_ODD_KEYS:
            raise DecodeError(f"a map has more than {MAX_ODD_KEYS} keys that are neither text nor binary")
        try:
            return dict(zip(flat[::2], flat[1::2], strict=True))
        except TypeError:
            raise DecodeError("a key of a map is a collection") from None

    def _array(self, count: int, pos: int, end: int, depth: int) -> Array:
        if count == 0:
            return Array()
        descriptors: list[Any] = []
        while self._data[pos : pos + 1] == b"\0" and len(descriptors) < MAX_DEPTH:
            descriptor, pos = self.value(pos + 1, end, depth)
            descriptors.append(descriptor)
        if pos >= end or depth > MAX_DEPTH:
            raise DecodeError("an array is without elements, or nested too deep")
        code, pos = self._data[pos], pos + 1
        if count > end - pos and (code >> 4 != 0x4 or count > MAX_EMPTY_ITEMS):
            raise DecodeError(f"{count} elements in {end - pos} bytes")
        self._items_left -= count
        if self._items_left < 0:
            raise DecodeError(_TOO_MANY)
        values = Array()
        for _ in range(count):
            value, pos = self._typed(code, pos, end, depth)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            values.append(value)
        if pos != end:
            raise DecodeError("bytes are left after the last element")
        return values


_COMPOUNDS: dict[int, Callable[[_Decoder, int, int, int, int], Any]] = {
    **dict.fromkeys((0xC0, 0xD0), _Decoder._list),
    **dict.fromkeys((0xC1, 0xD1), _Decoder._map),
    **dict.fromkeys((0xE0, 0xF0), _Decoder._array),
}
