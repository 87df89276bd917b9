"""Which columns of a frame make an event, and the events that Arrow batches of them make. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from spark_ehbalance.errors import OptionError, UnsendableEventError
from spark_ehbalance.hub.wire.outgoing import Encoder
from spark_ehbalance.partition_keys import partition_index
from spark_ehbalance.values.secrets import shown
from spark_ehbalance.values.suggestions import did_you_mean

#: The most characters of a partition key, `ClientConstants.MAX_PARTITION_KEY_LENGTH` of Azure's clients.
_LONGEST_KEY = 128

_LONG = range(-(1 << 63), 1 << 63)


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda given: isinstance(given, (*kinds, NullType))


def _is_properties(given: DataType) -> bool:
    values = (StringType, BinaryType, BooleanType, IntegralType, FloatType, DoubleType, NullType)
    return isinstance(given, MapType) and isinstance(given.keyType, StringType) and isinstance(given.valueType, values)


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    kinds = [each.dataType for each in given.elementType]
    return [each.name for each in given.elementType] == ["key", "value"] and (
        isinstance(kinds[0], StringType) and isinstance(kinds[1], BinaryType)
    )


class _Role(NamedTuple):
    """What a column is for, its types in words, and whether a type is one of them."""

    name: str
    types: str
    takes: Callable[[DataType], bool]


_BODY = _Role("body", "string or binary", _is(StringType, BinaryType))
_PARTITION = _Role("partition", "string or a whole number", _is(StringType, IntegralType))

#: Column → role, for frames as this source reads them, and as Spark's Kafka sink takes them.
_COLUMNS = {
    "body": _BODY,
    "partitionKey": _Role("key", "string", _is(StringType)),
    "partitionId": _PARTITION,
    "properties": _Role("properties", "a map of strings to strings, binary, booleans or numbers", _is_properties),
}
_KAFKA_COLUMNS = {
    "value": _BODY,
    "key": _Role("key", "string or binary", _is(StringType, BinaryType)),
    "partition": _PARTITION,
    "headers": _Role("headers", "array<struct<key:string,value:binary>>", _is_headers),
    "topic": _Role("topic", "string", _is(StringType)),
}


class Columns(NamedTuple):
    """The places in a frame of what makes an event; None where it has none. `headers`: properties as Kafka's sink has
    them; `topic`: the hub, which is an option here; `json`: whether values of properties are JSON."""

    body: int
    key: int | None = None
    partition: int | None = None
    properties: int | None = None
    headers: int | None = None
    topic: int | None = None
    json: bool = False

    @classmethod
    def of(cls, schema: StructType, *, kafka: bool = False, json: bool = False) -> Columns:
        """Those of a frame with this schema. Raises `OptionError` for a missing, wrong or unknown column."""
        roles = _KAFKA_COLUMNS if kafka else _COLUMNS
        names = {name.lower(): name for name in roles}
        found: dict[str, int] = {}
        for place, each in enumerate(schema):
            name = names.get(each.name.lower())
            if name is None:
                raise OptionError(_unknown(each, roles, kafka=kafka))
            role = roles[name]
            if role.name in found:
                raise OptionError(f"the frame has two columns {name}: select one of them")
            if not role.takes(each.dataType):
                given = each.dataType.simpleString()
                raise OptionError(f"column {name} is of the type {given}: allowed is {role.types}")
            found[role.name] = place
        if "body" not in found:
            name = next(iter(roles))
            raise OptionError(f"the frame has no column {name}, which is needed: allowed are {', '.join(roles)}")
        if json and "properties" not in found:
            raise OptionError("jsonProperties=true needs a column properties")
        if json and not isinstance(getattr(schema[found["properties"]].dataType, "valueType", None), StringType):
            raise OptionError("jsonProperties=true needs a column properties whose values are strings of JSON")
        return cls(**found, json=json)


def _unknown(column: StructField, roles: Iterable[str], *, kafka: bool) -> str:
    name = shown(column.name)
    allowed = f"allowed are {', '.join(roles)}"
    other = next((each for each in (_COLUMNS if kafka else _KAFKA_COLUMNS) if each.lower() == column.name.lower()), "")
    if kafka and other == "body":
        return f"the frame has a column body, and kafkaColumns=true: {allowed}"
    if not kafka and other in ("value", "key", "headers"):
        return f"the frame has a column {other}, as for Kafka's sink: set kafkaColumns=true, or rename it; {allowed}"
    if not kafka and other == "partition":
        return f"the frame has a column partition: name it partitionId, or leave it out; {allowed}"
    return f"the frame has a column {name}, of which nothing can be made: {allowed}{did_you_mean(column.name, roles)}"


def check_topic(batch: pa.RecordBatch, columns: Columns, hub: str) -> None:
    """Raise `UnsendableEventError` if a row of `batch` names another hub than that of the option."""
    topics = [] if columns.topic is None else batch.column(columns.topic).unique().to_pylist()
    for each in topics:
        if each is not None and each.lower() != hub.lower():
            raise UnsendableEventError(
                f"a row has the topic {shown(each)}, and eventHubName is {hub}: write each topic by itself, without "
                "the column"
            )


class Event(NamedTuple):
    """One event, encoded, and the partition to which it goes; None: the hub chooses."""

    partition: str | None
    section: bytes


def events(
    batch: pa.RecordBatch, columns: Columns, partitions: Callable[[], Sequence[str]], most: int, before: int
) -> Iterator[Event]:
    """The events of the rows of `batch`, of at most `most` bytes each. `partitions` gives the ids of the hub's, in the
    order of their numbers, and is called if a row has a key or a partition; `before` counts the task's earlier rows.

    Raises `UnsendableEventError`, which names the row by its number in the task.
    """
    encoder = Encoder()
    by_key: dict[str, str] = {}
    known: frozenset[str] = frozenset()
    rows = zip(*_values(batch, columns), strict=True)
    for number, (body, key, partition, properties) in enumerate(rows, before + 1):
        target = None
        try:
            body = body.encode() if isinstance(body, str) else body
            if key is not None or partition is not None:
                known = known or frozenset(partitions())
                key, target = _target(key, partition, partitions, known, by_key)
            section = encoder.event(body, key, _properties(properties, columns) if properties else None)
        except (ValueError, TypeError) as problem:
            raise UnsendableEventError(f"row {number} of a task cannot be sent: {problem}") from None
        if len(section) > most:
            what = f" with the key {shown(key)}" if key else ""
            raise UnsendableEventError(
                f"row {number} of a task cannot be sent: the event{what} has {len(section):,} bytes with its "
                f"properties, and the hub takes {most:,}. Nothing was sent of it and of the rows around it"
            )
        yield Event(target, section)


def _target(
    key: Any, partition: Any, partitions: Callable[[], Sequence[str]], known: frozenset[str], by_key: dict[str, str]
) -> tuple[str | None, str | None]:
    """The key as text, and the partition. Raises ValueError."""
    if partition is not None:
        if key is not None:
            raise ValueError("it has both a partition key and a partition: allowed is one of them, the other null")
        if (name := str(partition)) not in known:
            raise ValueError(f"partition {shown(name)} does not exist: the hub has {len(known)}, from 0 on")
        return None, name
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            raise ValueError("its key is no UTF-8, and a partition key is text") from None
    if not key:
        return None, None
    if len(key) > _LONGEST_KEY:
        raise ValueError(f"its partition key has {len(key)} characters: allowed are {_LONGEST_KEY}")
    target = by_key.get(key)
    if target is None:
        ids = partitions()
        target = by_key[key] = ids[partition_index(key, len(ids))]
    return key, target


def _values(batch: pa.RecordBatch, columns: Columns) -> list[list[Any]]:
    """The columns that make events, as Python values: body, key, partition, properties."""
    properties = columns.headers if columns.properties is None else columns.properties
    places = (columns.body, columns.key, columns.partition, properties)
    nothing = [None] * batch.num_rows
    return [nothing if place is None else batch.column(place).to_pylist() for place in places]


def _properties(given: list[Any], columns: Columns) -> dict[str, Any]:
    """The properties of an event, from a list of pairs or of headers. Raises ValueError."""
    if columns.headers is not None:
        given = [(each["key"], each["value"]) for each in given if each is not None]
    names = [name for name, _ in given]
    if None in names:
        raise ValueError("it has a header without a key")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has several values of {shown(twice)}, and an event has one of each property")
    return {name: _from_json(name, value) for name, value in given} if columns.json else dict(given)


def _from_json(name: str, text: str | None) -> Any:
    """The value that the source with `jsonProperties` writes in this way: binary is an array of its bytes."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(f"its property {shown(name)} is no JSON, as jsonProperties=true asks for") from None
    if isinstance(value, list) and all(isinstance(each, int) and -128 <= each <= 127 for each in value):
        return bytes(each & 0xFF for each in value)
    if isinstance(value, list | dict):
        return text
    if isinstance(value, int) and value not in _LONG:
        raise ValueError(f"its property {shown(name)} is a number that needs more than 64 bits")
    return value
