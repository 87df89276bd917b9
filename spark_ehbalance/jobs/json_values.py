"""Converts JSON objects to values of Spark's types. Rejects values that cannot be converted back to what was sent."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NoReturn

import numpy
import pyarrow as pa
import pyspark.sql.types as T

#: Converts a non-null JSON value. A reader is such a function together with the Arrow type of its results.
_Convert = Callable[[Any], Any]
_Reader = tuple[_Convert, pa.DataType]

#: Maximum number of characters of a value or path shown in a reason.
_MAX_SHOWN = 100

#: Maximum number of different names in a body. Spark's Python workers hash without a random seed (PYTHONHASHSEED=0), so
#: a sender can construct names that collide: 82,000 of them take seconds, but 4,096 only milliseconds.
_MAX_NAMES = 4096

#: A JSON string, and the colon that follows it if it is a name.
_STRING = re.compile(r'"((?:[^"\\]|\\.?)*)(?:"(\s*:)?|\Z)', re.DOTALL)

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)

#: ISO 8601, with at most six decimal places.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?:(:\d\d)(?:\.(\d{1,6})0*)?)?(?:([+-]\d\d):?([0-5]\d)|(Z))?", re.ASCII
)

_INTEGERS: dict[type[T.DataType], tuple[int, pa.DataType]] = {
    T.ByteType: (8, pa.int8()),
    T.ShortType: (16, pa.int16()),
    T.IntegerType: (32, pa.int32()),
    T.LongType: (64, pa.int64()),
}
#: Limits on the number of fields that a body sets. An empty object of three bytes sets all fields of its struct to
#: null. 1 MB of such objects in a struct with 60 fields made a JVM with 1 GB run out of memory; 10 MB with 4 fields per
#: byte did not. Objects with values have fewer than one field per 4 bytes.
_MAX_FIELDS, _FIELDS_PER_BYTE = 100_000, 4

_SPECIAL = {"NaN", "Infinity", "-Infinity"}


class RejectedError(Exception):
    """A body, or a value in it, cannot be stored as it was sent."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem, self.path = problem, path

    def inside(self, name: str) -> RejectedError:
        """The same error for the enclosing value, which contains this one under `name`."""
        path = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return RejectedError(self.problem, f"{name}{path}")

    @property
    def reason(self) -> str:
        """The problem and the affected field, on one line."""
        text = f"field {_cut(self.path)} {self.problem}" if self.path else self.problem
        return text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    return text[:_MAX_SHOWN]


class _Number(str):
    """The text of a number, as sent."""

    __slots__ = ()


class _Budget:
    """The number of fields that a body may still set."""

    left = 0

    def take(self, fields: int) -> None:
        self.left -= fields
        if self.left < 0:
            raise _TooManyFields


class _TooManyFields(Exception):
    """A body sets too many fields."""


class JsonReader:
    """Parses bodies according to a schema. `type` is the Arrow type of the struct."""

    def __init__(self, schema: T.StructType) -> None:
        """Raises `ValueError` if the schema contains a type that JSON cannot be parsed as."""
        self._budget = _Budget()
        self._convert, self.type = _struct(schema, self._budget)
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_object, parse_int=_Number, parse_float=_Number, parse_constant=_reject_constant
        )

    def read(self, body: bytes | None) -> dict[str, Any]:
        """The fields of a body. Raises `RejectedError`."""
        if body is None:
            raise RejectedError("no body")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise RejectedError("not UTF-8") from None
        if text.count(":") > _MAX_NAMES:
            _check_names(text)
        self._budget.left = _MAX_FIELDS + _FIELDS_PER_BYTE * len(body)
        try:
            fields: dict[str, Any] = self._convert(self._parse(text))
        except RecursionError:
            raise RejectedError("nested too deeply") from None
        except _TooManyFields:
            raise RejectedError("too many fields without a value") from None
        return fields

    def _parse(self, text: str) -> dict[str, Any]:
        start = text.lstrip(" \t\r\n")
        try:
            value, end = self._decoder.raw_decode(start)
        except ValueError:
            value, end = None, 0
        if not isinstance(value, dict):
            raise RejectedError("not a JSON object")
        if start[end:].strip(" \t\r\n"):
            raise RejectedError("more than one JSON object")
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = sorted(name for name, _ in pairs)
        duplicate = next(name for name, following in itertools.pairwise(names) if name == following)
        raise RejectedError(f"name {_cut(duplicate)} occurs twice in an object")
    return fields


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_names(text: str) -> None:
    names = sorted(name for name, colon in _STRING.findall(text) if colon)
    if sum(name != following for name, following in itertools.pairwise(names)) >= _MAX_NAMES:
        raise RejectedError(f"more than {_MAX_NAMES} different names")


def _reader(kind: T.DataType, budget: _Budget) -> _Reader:
    if isinstance(kind, T.StructType):
        return _struct(kind, budget)
    if isinstance(kind, T.ArrayType):
        return _array(kind, budget)
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return _map(kind, budget)
    convert, arrow = _leaf(kind)

    def convert_or_reject(sent: Any) -> Any:
        try:
            return convert(sent)
        except (TypeError, ValueError, ArithmeticError):
            raise _mismatch(kind, sent) from None

    return convert_or_reject, arrow


def _mismatch(kind: T.DataType, sent: Any) -> RejectedError:
    text = _cut(sent if isinstance(sent, str) else _json(sent))
    return RejectedError(f"is not a valid {kind.simpleString()}: {text}")


def _struct(kind: T.StructType, budget: _Budget) -> _Reader:
    names = [name.lower() for name in kind.names]
    if twice := [name for name in kind.names if names.count(name.lower()) > 1]:
        raise ValueError(f"field {twice[-1]} occurs twice; Delta ignores case")
    readers = [(field.name, *_reader(field.dataType, budget), field.nullable) for field in kind]

    def convert(sent: Any) -> dict[str, Any]:
        if not isinstance(sent, dict):
            raise _mismatch(kind, sent)
        budget.take(len(readers))
        stored = {}
        for name, read, _, nullable in readers:
            value = sent.get(name)
            try:
                if value is None and not nullable:
                    raise RejectedError("is missing or null, but NOT NULL in the schema")
                stored[name] = None if value is None else read(value)
            except RejectedError as error:
                raise error.inside(name) from None
        return stored

    return convert, pa.struct([(name, arrow) for name, _, arrow, _ in readers])


def _array(kind: T.ArrayType, budget: _Budget) -> _Reader:
    read, arrow = _reader(kind.elementType, budget)

    def convert(sent: Any) -> list[Any]:
        if not isinstance(sent, list):
            raise _mismatch(kind, sent)
        stored = []
        for index, value in enumerate(sent):
            try:
                stored.append(None if value is None else read(value))
            except RejectedError as error:
                raise error.inside(f"[{index}]") from None
        return stored

    return convert, pa.list_(arrow)


def _map(kind: T.MapType, budget: _Budget) -> _Reader:
    read, arrow = _reader(kind.valueType, budget)

    def convert(sent: Any) -> list[tuple[str, Any]]:
        if not isinstance(sent, dict):
            raise _mismatch(kind, sent)
        stored = []
        for key, value in sent.items():
            try:
                stored.append((_string(key), None if value is None else read(value)))
            except UnicodeEncodeError:
                raise _mismatch(kind.keyType, key) from None
            except RejectedError as error:
                raise error.inside(key) from None
        return stored

    return convert, pa.map_(pa.string(), arrow)


def _leaf(kind: T.DataType) -> _Reader:
    """The reader for a type that contains no other types. Its conversion raises TypeError, ValueError or
    ArithmeticError."""
    if isinstance(kind, T.StringType):
        return _string, pa.string()
    if type(kind) in _INTEGERS:
        bits, arrow = _INTEGERS[type(kind)]
        return _integer(bits), arrow
    if isinstance(kind, T.DoubleType):
        return _double, pa.float64()
    if isinstance(kind, T.FloatType):
        return _float, pa.float32()
    if isinstance(kind, T.DecimalType):
        return _decimal(kind), pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.BooleanType):
        return _boolean, pa.bool_()
    if isinstance(kind, T.BinaryType):
        return _binary, pa.binary()
    if isinstance(kind, T.DateType):
        return _date, pa.date32()
    if isinstance(kind, T.TimestampType):
        return _timestamp, pa.timestamp("us", "UTC")
    if isinstance(kind, T.TimestampNTZType):
        return _local_time, pa.timestamp("us")
    raise ValueError(f"JSON cannot be parsed as {kind.simpleString()}; use STRING, which stores any JSON value as text")


def _string(sent: Any) -> str:
    """A string unchanged; any other value as JSON text, with its numbers as sent."""
    text = sent if isinstance(sent, str) else _json(sent)
    if not text.isascii():
        text.encode()  # JSON can escape half of a surrogate pair, which UTF-8 cannot encode
    return text


def _json(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json(name)}:{_json(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _number(sent: Any) -> _Number:
    if not isinstance(sent, _Number):
        raise ValueError("not a number")
    return sent


def _integer(bits: int) -> _Convert:
    end = 1 << (bits - 1)

    def convert(sent: Any) -> int:
        if len(_number(sent)) > 20 or not -end <= (value := int(sent)) < end:
            raise ValueError("too large")
        return value

    return convert


def _double(sent: Any) -> float:
    if sent in _SPECIAL:
        return float(sent)
    value = float(_number(sent))
    if repr(value) != sent:
        _check_digits(value, repr(value), sent)
    return value


def _float(sent: Any) -> float:
    if sent in _SPECIAL:
        return float(sent)
    value: float = struct.unpack("f", struct.pack("f", float(_number(sent))))[0]
    _check_digits(value, str(numpy.float32(value)), sent)
    return value


def _check_digits(value: float, shortest: str, sent: str) -> None:
    """Raise `ValueError` unless `value`, in its shortest form or with as many digits as were sent, equals `sent`."""
    exact = Decimal(sent)
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    if exact not in (Decimal(shortest), Decimal(f"{value:.{max(len(digits) - 1, 0)}e}")):
        raise ValueError("digits would be lost")


def _decimal(kind: T.DecimalType) -> _Convert:
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal((0, (1,), -kind.scale))

    def convert(sent: Any) -> Decimal:
        if not isinstance(sent, _Number) and not _NUMBER.fullmatch(sent):
            raise ValueError("not a number")
        return Decimal(sent).quantize(unit, context=exact)

    return convert


def _boolean(sent: Any) -> bool:
    if not isinstance(sent, bool):
        raise ValueError("not a boolean")
    return sent


def _binary(sent: Any) -> bytes:
    value = base64.b64decode(sent, validate=True)
    if isinstance(sent, _Number) or base64.b64encode(value).decode() != sent:
        raise ValueError("not Base64")
    return value


def _date(sent: Any) -> date:
    value = date.fromisoformat(sent)
    if value.isoformat() != sent:
        raise ValueError("not ISO 8601")
    return value


def _timestamp(sent: Any) -> datetime:
    return _time(sent, zone=True)


def _local_time(sent: Any) -> datetime:
    return _time(sent, zone=False)


def _time(sent: Any, *, zone: bool) -> datetime:
    match = _TIME.fullmatch(sent)
    if match is None:
        raise ValueError("not ISO 8601 to the microsecond")
    day, minute, second, fraction, hours, minutes, utc = match.groups()
    offset = "+00:00" if utc else f"{hours}:{minutes}" if hours else ""
    if bool(offset) != zone:
        raise ValueError("a time zone is missing or not allowed")
    time = datetime.fromisoformat(f"{day}T{minute}{second or ':00'}.{(fraction or '').ljust(6, '0')}{offset}")
    return time.astimezone(timezone.utc) if zone else time
