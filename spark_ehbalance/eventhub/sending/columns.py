"""Maps a frame's columns to event fields, and encodes Arrow batches as events. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
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
from spark_ehbalance.eventhub.rows import TEXT_SALT
from spark_ehbalance.eventhub.sending.write_options import FAIL
from spark_ehbalance.eventhub.wire.encoder import Encoder, Keyed, encode_system, small_pair
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.settings.suggestions import did_you_mean

#: Maximum length of a partition key, from `ClientConstants.MAX_PARTITION_KEY_LENGTH` in Azure's clients.
_MAX_KEY_LENGTH = 128

#: Matches binary in the JSON that the source writes: a list of signed bytes, without the spaces that other lists have.
_BINARY = re.compile(r"\[(?:-?(?:0|[1-9]\d{0,2})(?:,(?!\])|(?=\])))*\]", re.ASCII)

#: The numbers allowed in such a list.
_BYTES = frozenset(range(-128, 128))

#: The range of AMQP's long and unsigned long, and the maximum length of such a number as text: Python raises an error
#: for integers with more than 4,300 digits.
_LONG = range(-(1 << 63), 1 << 64)
_MAX_NUMBER_LENGTH = 20


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, (*kinds, NullType))


def _is_properties(kind: DataType) -> bool:
    values = (StringType, BinaryType, BooleanType, IntegralType, FloatType, DoubleType, NullType)
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, values)


def _is_texts(kind: DataType) -> bool:
    return _is_properties(kind) and isinstance(getattr(kind, "valueType", None), StringType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    kinds = [field.dataType for field in kind.elementType]
    return [field.name for field in kind.elementType] == ["key", "value"] and (
        isinstance(kinds[0], StringType) and isinstance(kinds[1], BinaryType)
    )


class _Role(NamedTuple):
    """The event field that a column fills, the types that it may have (as text), and a function that checks them."""

    name: str
    types: str
    accepts: Callable[[DataType], bool]


_BODY = _Role("body", "string or binary", _is(StringType, BinaryType))
_PARTITION = _Role("partition", "string or a whole number", _is(StringType, IntegralType))

#: Column → role, first for this source's columns, then for the columns of Spark's Kafka sink.
_COLUMNS = {
    "body": _BODY,
    "partitionKey": _Role("key", "string", _is(StringType)),
    "partitionId": _PARTITION,
    "properties": _Role("properties", "a map of strings to strings, binary, booleans or numbers", _is_properties),
    "systemProperties": _Role("system", "a map of strings to strings", _is_texts),
}
_KAFKA_COLUMNS = {
    "value": _BODY,
    "key": _Role("key", "string or binary", _is(StringType, BinaryType)),
    "partition": _PARTITION,
    "headers": _Role("headers", "array<struct<key:string,value:binary>>", _is_headers),
    "topic": _Role("topic", "string", _is(StringType)),
}


class SinkColumns(NamedTuple):
    """The column index of each event field; None if the frame has no such column. `system` contains message properties
    and annotations, `headers` contains properties as in Spark's Kafka sink, and `topic` contains the hub. `json` means
    that property values are JSON."""

    body: int
    key: int | None = None
    partition: int | None = None
    properties: int | None = None
    system: int | None = None
    headers: int | None = None
    topic: int | None = None
    json: bool = False

    @classmethod
    def from_schema(cls, schema: StructType, *, kafka: bool = False, json: bool = False) -> SinkColumns:
        """The columns of a frame with this schema. Raises `OptionError` for a missing, invalid or unknown column."""
        roles = _KAFKA_COLUMNS if kafka else _COLUMNS
        names = {name.lower(): name for name in roles}
        found: dict[str, int] = {}
        for index, column in enumerate(schema):
            name = names.get(column.name.lower())
            if name is None:
                raise _unknown_column(column, roles, kafka=kafka)
            role = roles[name]
            if role.name in found:
                raise _invalid_column(name, "the frame has two", "one")
            if not role.accepts(column.dataType):
                raise _invalid_column(name, f"its type is {column.dataType.simpleString()}", role.types)
            found[role.name] = index
        if "body" not in found:
            raise _invalid_column(next(iter(roles)), "it is required, and missing", f"columns {', '.join(roles)}")
        if json and "properties" not in found:
            reason = "the frame has no column properties"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option="jsonProperties=true", reason=reason)
        if "system" in found and not json:
            reason = "the frame has a column systemProperties, which must also have been read with jsonProperties=true"
            raise OptionError("EHB_OPTION_REQUIRED", option="jsonProperties=true", reason=reason)
        if json and not _is_texts(schema[found["properties"]].dataType):
            raise _invalid_column("properties", "with jsonProperties=true its values must be JSON", "strings of JSON")
        return cls(**found, json=json)


def _invalid_column(column: str, problem: str, allowed: str) -> OptionError:
    return OptionError("EHB_COLUMN_INVALID", column=column, problem=problem, allowed=allowed)


def _unknown_column(column: StructField, roles: Iterable[str], *, kafka: bool) -> OptionError:
    names = {name.lower(): name for name in (_COLUMNS if kafka else _KAFKA_COLUMNS)}
    name, problem = names.get(column.name.lower()), f"events have no such field{did_you_mean(column.name, roles)}"
    if kafka and name == "body":
        problem = "kafkaColumns=true excludes it"
    elif not kafka and name in ("value", "key", "headers"):
        problem = "it belongs to Spark's Kafka sink; rename it, or set kafkaColumns=true"
    elif not kafka and name == "partition":
        problem = "name it partitionId, or drop it"
    return _invalid_column(redacted(column.name), problem, f"columns {', '.join(roles)}")


def check_topic(batch: pa.RecordBatch, columns: SinkColumns, hub: str) -> None:
    """Raise `UnsendableEventError` if the topic of a row in `batch` is not `hub`."""
    topics = [] if columns.topic is None else batch.column(columns.topic).cast(pa.binary()).unique().to_pylist()
    for topic in (topic.decode(errors="replace") for topic in topics if topic is not None):
        if topic.lower() != hub.lower():
            raise UnsendableEventError(
                "EHB_ROW_UNSENDABLE", problem=f"The topic of a row is {redacted(topic)}, and eventHubName is {hub}"
            )


#: Partition → salted key → events. For partition None, the hub chooses the partition, by the key if there is one.
Events = dict[str | None, dict[str, Keyed]]


class _Event(NamedTuple):
    partition: str | None
    key: str | None
    envelope: bytes
    head: bytes
    body: bytes


class RowEncoder:
    """Encodes the rows of a task as events.

    `partitions` returns the hub's partition ids, and is called only for rows with a partition. `most` returns the
    maximum size of an event in bytes, given the partition of the task's first event. `policy` is the option
    `onUnsendable`. `skipped` counts skipped rows; `problem` is the reason why the first one was skipped.
    """

    def __init__(
        self,
        columns: SinkColumns,
        partitions: Callable[[], Sequence[str]],
        most: Callable[[str | None], int],
        policy: str = FAIL,
    ) -> None:
        self._columns, self._partitions, self._most, self._policy = columns, partitions, most, policy
        self._ids: Sequence[str] = ()
        self._count = self.skipped = 0
        self.problem = ""

    def add(self, batch: pa.RecordBatch, events: Events) -> None:
        """Add the events of `batch`. Raises `UnsendableEventError`, which names the row's number in the task."""
        for event in self._encoded(batch):
            self._count += 1
            if isinstance(event, ValueError):
                problem = f"Row {self._count} of a task cannot be sent: {event}"
                if self._policy == FAIL:
                    raise UnsendableEventError("EHB_ROW_UNSENDABLE", problem=problem)
                self.skipped += 1
                self.problem = self.problem or problem
                continue
            by_key = events.setdefault(event.partition, {})
            salted = TEXT_SALT + (event.key or "")
            if salted not in by_key:
                by_key[salted] = Keyed(event.envelope, [])
            by_key[salted].events.extend((event.head, event.body))

    def unsendable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that cannot be sent, with the reason in an additional last column `reason`."""
        problems = [str(event) if isinstance(event, ValueError) else None for event in self._encoded(batch)]
        reasons = pa.array(problems, pa.string())
        return batch.append_column("reason", reasons).filter(reasons.is_valid())

    def _encoded(self, batch: pa.RecordBatch) -> Iterator[_Event | ValueError]:
        """The event of each row, or the error that explains why it cannot be sent."""
        try:
            yield from self._encoded_together(batch)
        except UnicodeDecodeError:  # raised before the first row was yielded; casts in Spark can produce invalid UTF-8
            for row in range(batch.num_rows):
                try:
                    yield from self._encoded_together(batch.slice(row, 1))
                except UnicodeDecodeError:
                    yield ValueError("a string is not UTF-8")

    def _encoded_together(self, batch: pa.RecordBatch) -> Iterator[_Event | ValueError]:
        columns, encoder = self._columns, Encoder()
        self._ids = ()
        bodies, keys, partitions = (
            repeat(None) if index is None else batch.column(index).to_pylist()
            for index in (columns.body, columns.key, columns.partition)
        )
        headers = columns.headers is not None
        properties = _headers(batch.column(columns.headers)) if headers else _pairs(batch, columns.properties)
        for row in zip(bodies, keys, partitions, properties, _pairs(batch, columns.system), strict=False):
            try:
                event: _Event | ValueError = self._event(encoder, *row)
            except ValueError as problem:
                event = problem
            yield event

    def _event(self, encoder: Encoder, body: Any, key: Any, partition: Any, own: _Pairs, others: _Pairs) -> _Event:
        """Raises ValueError."""
        if partition is not None:
            partition = self._checked_partition(key, str(partition))
        key = _checked_key(key)
        envelope = encoder.envelope(key)
        most = self._most(partition) - len(envelope)
        if isinstance(body, str):
            body = body.encode()
        (names, values), system = self._checked(*own), None
        if others[0]:
            system = encode_system(zip(*self._checked(*others), strict=True))
        head = encoder.head(body, key, list(map(encoder.pair, names, values)), system)
        if len(head) + len(body or b"") > most:  # try again, encoding numbers in the smallest types that can hold them
            head = encoder.head(body, key, list(map(small_pair, names, values)), system)
        if (size := len(head) + len(body or b"")) > most:
            what = f" with key {redacted(key)}" if key else ""
            raise ValueError(f"the event{what} has {size:,} bytes with its properties; the hub accepts {most:,}")
        return _Event(partition, key, envelope, head, body or b"")

    def _checked_partition(self, key: Any, partition: str) -> str:
        """Raises ValueError."""
        if key:
            raise ValueError("it has both a partition key and a partition; one must be null")
        self._ids = self._ids or self._partitions()
        if partition not in self._ids:
            hub = f"the hub has {len(self._ids)} partitions, numbered from 0"
            raise ValueError(f"partition {redacted(partition)} does not exist; {hub}")
        return partition

    def _checked(self, names: list[str], values: list[Any]) -> _Pairs:
        """Raises ValueError for a missing or repeated name, and for a value that is not JSON."""
        if None in names:
            raise ValueError("a header has no key")
        if len(names) > 1:
            _check_single(names)
        return names, list(map(_from_json, names, values)) if self._columns.json else values


def _checked_key(key: Any) -> str | None:
    """The key as text; None if there is no key. Raises ValueError."""
    if not key:
        return None
    try:
        text: str = key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        raise ValueError("its partition key is not UTF-8 text") from None
    if len(text) > _MAX_KEY_LENGTH:
        raise ValueError(f"its partition key has {len(text)} characters; the maximum is {_MAX_KEY_LENGTH}")
    return text


#: Names and values of properties.
_Pairs = tuple[list[str], list[Any]]


def _headers(column: pa.Array) -> Iterator[_Pairs]:
    """The properties of each row, from a column of Spark's Kafka sink. A name may be null."""
    for row in column.to_pylist():
        headers = [header for header in row or () if header is not None]
        yield [header["key"] for header in headers], [header["value"] for header in headers]


def _pairs(batch: pa.RecordBatch, index: int | None) -> Iterator[_Pairs]:
    """The pairs of each row, from a column of maps."""
    if index is None:
        yield from repeat(([], []))
        return
    maps = batch.column(index)
    ends = maps.offsets.to_pylist()
    first, last = ends[0], ends[-1]
    names, values = (column.slice(first, last - first).to_pylist() for column in (maps.keys, maps.items))
    for begin, end in pairwise(ends):
        yield names[begin - first : end - first], values[begin - first : end - first]


def _check_single(names: list[str]) -> None:
    counts = Counter(map(TEXT_SALT.__add__, names))
    if len(counts) < len(names):
        repeated = counts.most_common(1)[0][0].removeprefix(TEXT_SALT)
        raise ValueError(f"it has several values of {redacted(repeated)}")


def _from_json(name: str, text: str | None) -> Any:
    """The value of JSON text that the source wrote with `jsonProperties`. An array of bytes becomes binary."""
    if text is None:
        return None
    if text.lstrip()[:1] in (
        "[",
        "{",
    ):  # not parsed, because a sender could choose names that make parsing take minutes
        numbers: list[Any] = json.loads(text) if _BINARY.fullmatch(text) else [None]
        return text if not _BYTES.issuperset(numbers) else bytes(number & 0xFF for number in numbers)
    try:
        return _decode(text)
    except OverflowError:
        raise ValueError(f"its property {redacted(name)} is a number of more than 64 bits") from None
    except ValueError:
        raise ValueError(f"its property {redacted(name)} is not JSON, as jsonProperties=true requires") from None


def _whole(text: str) -> int:
    if len(text) > _MAX_NUMBER_LENGTH or (value := int(text)) not in _LONG:
        raise OverflowError
    return value


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value) or (value == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise OverflowError
    return value


_decode = json.JSONDecoder(parse_int=_whole, parse_float=_double).decode
