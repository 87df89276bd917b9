"""JSON values: a stored value converted back to JSON equals the sent one; others are rejected, naming the field."""

from __future__ import annotations

import base64
import json
import re
from datetime import date, datetime, timezone
from decimal import Context, Decimal
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_ehbalance.jobs.json_values import JsonReader, RejectedError


def _fields(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


SCHEMA = _fields(
    tiny=T.ByteType(),
    small=T.ShortType(),
    int=T.IntegerType(),
    big=T.LongType(),
    float=T.FloatType(),
    double=T.DoubleType(),
    decimal=T.DecimalType(10, 2),
    whole=T.DecimalType(38, 0),
    flag=T.BooleanType(),
    bytes=T.BinaryType(),
    day=T.DateType(),
    at=T.TimestampType(),
    local=T.TimestampNTZType(),
    text=T.StringType(),
    list=T.ArrayType(T.ByteType()),
    map=T.MapType(T.StringType(), _fields(x=T.DecimalType(5, 1))),
    inner=_fields(days=T.ArrayType(T.DateType()), float=T.FloatType()),
)

_SPECIAL = ("NaN", "Infinity", "-Infinity")
_EDGES = [sign * 2**bits + more for bits in (7, 8, 15, 16, 24, 31, 53, 63, 64) for sign in (1, -1) for more in (-1, 0)]
_EXPONENTS = [-400000000, -400, -45, -2, 2, 38, 39, 308, 309, 400000000]
_DIGITS = st.text("0123456789", min_size=1, max_size=25)
_NUMBERS = st.one_of(
    st.integers().map(str),
    st.sampled_from(_EDGES).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.9g}"),
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), st.integers(0, 10**9), _DIGITS),
    st.builds("{}e{}".format, st.integers(-99, 99), st.sampled_from(_EXPONENTS)),
)  # fmt: skip
_TIMES = st.builds(
    "{}{}{}{}{}".format,
    st.dates(),
    st.sampled_from(["T", " ", ""]),
    st.times().map(lambda time: time.isoformat("seconds")),
    st.one_of(st.just(""), _DIGITS.map(".{}".format)),
    st.sampled_from(["", "Z", "+00:00", "+0530", "-11:45", "Europe/Berlin"]),
)
_WORDS = st.sampled_from(["20260131", "17", "12:30", "2026-1-31", "2026", "true", "1,234", "AQ=", "AR==", *_SPECIAL])
_TEXTS = st.one_of(
    st.text(st.characters(blacklist_categories=[])),  # including halves of surrogate pairs, which JSON can escape
    st.dates().map(str),
    st.binary(max_size=9).map(lambda value: base64.b64encode(value).decode()),
    _TIMES,
    _WORDS,
    _NUMBERS,
).map(json.dumps)
_LEAVES = st.one_of(_NUMBERS, _TEXTS, st.sampled_from(["null", "true", "false"]))
_INSIDE = st.one_of(
    st.lists(_LEAVES, max_size=3).map(lambda values: f"[{', '.join(values)}]"),
    st.builds('{{"a": {{"x": {}}}, "\\ud83d\\ude00": null}}'.format, _NUMBERS),
    st.builds('{{"days": ["{}", null], "float": {}, "more": {}}}'.format, st.dates(), _NUMBERS, _LEAVES),
)  # fmt: skip

#: Bodies with one field of `SCHEMA`: valid, almost valid and invalid ones.
BODIES = st.builds('{{"{}": {}}}'.format, st.sampled_from(SCHEMA.names), st.one_of(_LEAVES, _INSIDE))


def parsed(text: str) -> Any:
    """The JSON text parsed with exact numbers."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def same(kind: T.DataType, sent: Any, stored: Any) -> bool:
    """Whether the value of an Arrow array equals `sent`, a result of `parsed`."""
    if sent is None or stored is None:
        return sent is stored
    if isinstance(kind, T.StructType):
        return all(same(field.dataType, sent.get(field.name), stored[field.name]) for field in kind)
    if isinstance(kind, T.ArrayType):
        return len(sent) == len(stored) and all(map(same, [kind.elementType] * len(sent), sent, stored))
    if isinstance(kind, T.MapType):
        values = dict(stored)
        return sent.keys() == values.keys() and all(same(kind.valueType, sent[key], values[key]) for key in sent)
    if isinstance(kind, T.StringType) and not isinstance(sent, str):
        return bool(parsed(stored) == sent)
    if isinstance(kind, T.DecimalType):
        return Decimal(sent) == stored
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        shortest = str(numpy.float32(stored) if isinstance(kind, T.FloatType) else stored)
        if isinstance(sent, str):
            return shortest == {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[sent]
        last = Decimal((0, (1,), int(sent.normalize(Context(prec=99)).as_tuple().exponent)))
        return Decimal(shortest) == sent or abs(Decimal(stored) - sent) * 2 <= last
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        seconds, fraction, zone = re.fullmatch(r"(.{19})(\.\d+)?(.*)", sent).groups("")  # type: ignore[union-attr]
        zone = re.sub(r"(\d\d)(\d\d)$", r"\1:\2", zone.replace("Z", "+00:00"))
        part = Decimal(f"0{fraction}") * 1_000_000
        return datetime.fromisoformat(seconds + zone) == stored.replace(microsecond=0) and part == stored.microsecond
    if isinstance(stored, bytes):
        return base64.b64encode(stored).decode() == str(sent)
    return bool(sent == (stored.isoformat() if isinstance(stored, date) else stored))


def _reason(schema: T.StructType, body: bytes | None) -> str:
    with pytest.raises(RejectedError) as rejected:
        JsonReader(schema).read(body)
    return rejected.value.reason


def _short(value: object) -> str:
    return repr(value)[:30]


@settings(max_examples=300, deadline=None)
@given(BODIES)
def test_stored_values_equal_sent_values(body: str) -> None:
    reader = JsonReader(SCHEMA)
    try:
        fields = reader.read(body.encode())
    except RejectedError:
        return
    [stored] = pa.array([fields], reader.type).to_pylist()
    assert same(SCHEMA, parsed(body), stored)


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("tiny", "-128", -128),
        ("big", "9223372036854775807", 2**63 - 1),
        ("double", "0.10000000000000001", 0.1),  # in the format of printf("%.17g")
        ("double", '"-Infinity"', -float("inf")),
        ("float", "0.1", float(numpy.float32(0.1))),
        ("decimal", '"-1.5e1"', Decimal("-15")),
        ("decimal", "0e400000000", Decimal(0)),
        ("at", '"2026-01-31 12:00:00.1200000+01:00"', datetime(2026, 1, 31, 11, 0, 0, 120000, timezone.utc)),
        ("local", '"2026-01-31T12:00"', datetime(2026, 1, 31, 12)),
        ("text", '{"a" : [1.10, 12345678901234567890.123, "\\u00e4", null, 1e400000000]}',
         '{"a":[1.10,12345678901234567890.123,"ä",null,1e400000000]}'),
        ("map", '{"b": {"x": 1}, "a": null}', [("b", {"x": Decimal("1.0")}), ("a", None)]),
        ("inner", "{}", {"days": None, "float": None}),
    ],
)  # fmt: skip
def test_valid_values_are_accepted(field: str, value: str, stored: object) -> None:
    assert JsonReader(SCHEMA).read(f'\n\t {{"{field}": {value}, "more": 1e999}}\r\n'.encode())[field] == stored


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("tiny", "128", "tinyint"),
        ("int", "1.0", "int"),
        ("int", "1" * 5000, "int"),
        ("float", "1e39", "float"),
        ("float", "16777217", "float"),
        ("double", "1e400000000", "double"),
        ("double", "9007199254740993", "double"),
        ("double", "0.1234567890123456789", "double"),
        ("double", '"1.5"', "double"),
        ("decimal", "1.239", "decimal(10,2)"),
        ("decimal", "1e-400000000", "decimal(10,2)"),
        ("decimal", "1e9999999999999999999", "decimal(10,2)"),
        ("decimal", '"NaN"', "decimal(10,2)"),
        ("flag", "1", "boolean"),
        ("bytes", '"AR=="', "binary"),
        ("day", '"20260131"', "date"),
        ("day", '"2026-W05-6"', "date"),
        ("day", '"2026-01-31T00:00:00"', "date"),
        ("at", '"12:30"', "timestamp"),
        ("at", '"2026-01-31T12:00:00"', "timestamp"),
        ("at", '"2026-01-31T12:00:00.1234567Z"', "timestamp"),
        ("at", '"0001-01-01T00:00:00+01:00"', "timestamp"),
        ("at", '"2026-01-31T12:00:00+05:60"', "timestamp"),
        ("local", '"2026-01-31T12:00:00Z"', "timestamp_ntz"),
        ("list", '"[1]"', "array<tinyint>"),
        ("inner", "[]", "struct<days:array<date>,float:float>"),
    ],
    ids=_short,
)
def test_inexact_values_are_rejected(field: str, value: str, kind: str) -> None:
    text = value.strip('"')[:100]
    assert _reason(SCHEMA, f'{{"{field}": {value}}}'.encode()) == f"field {field} is not a valid {kind}: {text}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"list": [1, 300]}', "field list[1] is not a valid tinyint: 300"),
        (b'{"map": {"k": {"x": 0.25}}}', "field map.k.x is not a valid decimal(5,1): 0.25"),
        (b'{"inner": {"days": ["2026-01-31", "31"]}}', "field inner.days[1] is not a valid date: 31"),
        (b'{"text": "\\ud800"}', "field text is not a valid string: ?"),
        (b'{"map": {"\\ud800": null}}', "field map is not a valid string: ?"),
        (None, "no body"),
        (b"\xff{}", "not UTF-8"),
        (b"[{}]", "not a JSON object"),
        (b'{"double": NaN}', "not a JSON object"),
        (b'{"tiny": 4}\n{"tiny": 5}', "more than one JSON object"),
        (b'{"tiny": 4, "tiny": 5}', "name tiny occurs twice in an object"),
        (b'{"text": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"text": ' + b"[" * 800 + b"]" * 800 + b"}", "nested too deeply"),
        (json.dumps({f'\\"{n}:': "\\" for n in range(5000)}).encode(), "more than 4096 different names"),
    ],
    ids=_short,
)
def test_rejection_has_a_reason(body: bytes | None, reason: str) -> None:
    assert _reason(SCHEMA, body) == reason


def test_objects_with_too_many_unset_fields_are_rejected() -> None:
    """330,000 empty objects (1 MB) crashed the JVM at every start."""
    item = T.StructType([T.StructField(f"f{number}", T.IntegerType()) for number in range(60)])
    reader = JsonReader(T.StructType([T.StructField("items", T.ArrayType(item))]))

    def body(item: str, count: int) -> bytes:
        return f'{{"items": [{", ".join([item] * count)}]}}'.encode()

    assert len(reader.read(body('{"f0": 1}', 5000))["items"]) == 5000
    assert len(reader.read(body("{}", 1600))["items"]) == 1600
    with pytest.raises(RejectedError) as rejected:
        reader.read(body("{}", 20_000))
    assert rejected.value.reason == "too many fields without a value"
    assert reader.read(b"{}") == {"items": None}


def test_not_null_is_checked_at_any_depth() -> None:
    inner = T.StructType([T.StructField("x", T.LongType(), nullable=False)])
    assert _reason(_fields(xs=T.ArrayType(inner)), b'{"xs": [{"x": 1}, {}]}') == (
        "field xs[1].x is missing or null, but NOT NULL in the schema"
    )


def test_unsupported_types_are_rejected() -> None:
    with pytest.raises(ValueError, match="JSON cannot be parsed as variant; use STRING"):
        JsonReader(_fields(xs=T.ArrayType(T.VariantType())))
