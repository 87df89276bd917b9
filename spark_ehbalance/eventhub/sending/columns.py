"""Maps a frame's columns to event fields, and encodes Arrow batches as events. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
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
from spark_ehbalance.eventhub.rows import SALT, TEXT_SALT
from spark_ehbalance.eventhub.sending.write_options import FAIL
from spark_ehbalance.eventhub.wire import encoder
from spark_ehbalance.eventhub.wire.encoder import Keyed
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


#: Partition → events by key. For partition None, the hub chooses the partition, by the key if there is one.
Events = dict[str | None, list[Keyed]]

#: Row → the first reason found why it cannot be sent.
_Problems = dict[int, str]


class _Group(NamedTuple):
    """The partition and the key of some rows."""

    partition: str | None
    key: str


class RowEncoder:
    """Encodes the rows of a task as events, column by column.

    `partitions` returns the hub's partition ids, and is called only for rows with a partition. `most` returns the
    maximum size of an event in bytes, given the partition of the task's first event. `policy` is the option
    `onUnsendable`. `skipped` counts skipped rows; `problem` is the reason why the first one was skipped.
    """

    def __init__(
        self,
        columns: SinkColumns,
        partitions: Callable[[str], Sequence[str]],
        most: Callable[[str | None], int],
        policy: str = FAIL,
    ) -> None:
        self._columns, self._partitions, self._most, self._policy = columns, partitions, most, policy
        self._ids: Sequence[str] = ()
        self._count = self.skipped = 0
        self.problem = ""

    def encode(self, batch: pa.RecordBatch) -> Events:
        """The events of `batch`. Raises `UnsendableEventError`, which names the row's number in the task."""
        events, problems = self._encoded(batch, fails=self._policy == FAIL)
        if problems:
            row = min(problems)
            problem = f"Row {self._count + row + 1} of a task cannot be sent: {problems[row]}"
            if self._policy == FAIL:
                raise UnsendableEventError("EHB_ROW_UNSENDABLE", problem=problem)
            self.skipped += len(problems)
            self.problem = self.problem or problem
        self._count += batch.num_rows
        return events

    def unsendable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that cannot be sent, with the reason in an additional last column `reason`."""
        _, problems = self._encoded(batch, fails=False)
        reasons = pa.array(map(problems.get, range(batch.num_rows)), pa.string())
        return batch.append_column("reason", reasons).filter(reasons.is_valid())

    def _encoded(self, batch: pa.RecordBatch, *, fails: bool) -> tuple[Events, _Problems]:
        """The events of the rows that can be sent, and the problems of the others. If `fails`, nothing is encoded after
        a problem of the first row."""
        columns, count = self._columns, batch.num_rows
        batch, problems = _without_invalid_text(batch, columns)
        groups, codes = self._grouped(batch, problems)
        first = next((row for row in range(count) if row not in problems), None)
        if first is None or (fails and first):
            return {}, problems
        envelopes = [encoder.encode_annotations(group.key) for group in groups]
        room = self._most(groups[codes[first]].partition) - np.array([*map(len, envelopes)])[codes]
        if columns.system is None:
            annotations = pa.array(envelopes, pa.large_binary()).take(pa.array(codes))
        else:
            annotations = _system(_pairs(batch.column(columns.system)), [groups[c].key for c in codes], problems)
        bodies = _binary(batch.column(columns.body))
        properties = next((i for i in (columns.properties, columns.headers) if i is not None), None)
        pairs = None if properties is None else _pairs(batch.column(properties))
        small = np.zeros(count, np.bool_)
        for _ in range(2):  # again, with numbers in the smallest types that can hold them, if events are too large
            sections = [] if pairs is None else self._properties(pairs, small, problems)
            parts = encoder.encode_events([annotations, *sections], bodies)
            sizes = encoder.sizes(parts)
            small = sizes > room
            if not small.any():
                break
        for row in np.flatnonzero(small).tolist():
            key = groups[codes[row]].key
            what = f" with key {redacted(key)}" if key else ""
            size = f"{sizes[row]:,} bytes with its properties; the hub accepts {room[row]:,}"
            problems.setdefault(row, f"the event{what} has {size}")
        order = np.delete(np.arange(count), [*problems])
        order = order[np.argsort(codes[order], kind="stable")]
        if not len(order):
            return {}, problems
        if len(groups) > 1 or problems:
            parts = [part.take(pa.array(order)) for part in parts]
        return _events(encoder.joined(*parts), groups, envelopes, codes[order]), problems

    def _grouped(self, batch: pa.RecordBatch, problems: _Problems) -> tuple[list[_Group], Any]:
        """The distinct partitions and keys in order of appearance, and the number of each row's."""
        columns = self._columns
        if columns.key is None and columns.partition is None:
            return [_Group(None, "")], np.zeros(batch.num_rows, np.int64)
        keys: Iterable[bytes] = repeat(SALT)
        if columns.key is not None:
            keys = map(SALT.__add__, _binary(batch.column(columns.key)).fill_null(b"").to_pylist())
        partitions: Iterable[str | None] = repeat(None)
        if columns.partition is not None:
            texts = batch.column(columns.partition).cast(pa.string()).to_pylist()
            partitions = (None if text is None else TEXT_SALT + text for text in texts)
        numbers = defaultdict[tuple[str | None, bytes], int]()
        numbers.default_factory = numbers.__len__
        rows = zip(partitions, keys, strict=False)
        codes = np.fromiter(map(numbers.__getitem__, rows), np.int64, batch.num_rows)
        self._ids = ()
        groups, wrong = list[_Group](), dict[int, str]()
        for number, (partition, salted) in enumerate(numbers):
            try:
                groups.append(self._checked(partition and partition[len(TEXT_SALT) :], salted[len(SALT) :]))
            except ValueError as problem:
                groups.append(_Group(None, ""))
                wrong[number] = str(problem)
        for row in np.flatnonzero(np.isin(codes, [*wrong])).tolist():
            problems.setdefault(row, wrong[codes[row]])
        return groups, codes

    def _checked(self, partition: str | None, key: bytes) -> _Group:
        """Raises ValueError."""
        if partition is not None:
            if key:
                raise ValueError("it has both a partition key and a partition; one must be null")
            if partition not in self._ids:
                self._ids = self._partitions(partition)
            if partition not in self._ids:
                hub = f"the hub has {len(self._ids)} partitions, numbered from 0"
                raise ValueError(f"partition {redacted(partition)} does not exist; {hub}")
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise ValueError("its partition key is not UTF-8 text") from None
        if len(text) > _MAX_KEY_LENGTH:
            raise ValueError(f"its partition key has {len(text)} characters; the maximum is {_MAX_KEY_LENGTH}")
        return _Group(partition, text)

    def _properties(self, pairs: _Pairs, small: Any, problems: _Problems) -> list[pa.Array]:
        """The sections of application properties, in several columns. In rows that are `small`, numbers have the
        smallest types that can hold them."""
        names = _checked_names(pairs, problems)
        kind = pairs.values.type
        is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self._columns.json or not (is_binary or is_text):
            encoded = []
            for row, name, value in pairs.items():
                try:
                    value = _from_json(name, value) if self._columns.json else value
                    encoded.append(encoder.encode_value(value, small=small[row]))
                except ValueError as problem:
                    problems.setdefault(row, str(problem))
                    encoded.append(b"")
            values = pa.array(encoded, pa.large_binary())
        else:
            values = encoder.encode_texts(_binary(pairs.values), binary=is_binary)
        return encoder.encode_properties(encoder.joined(names, values), pairs.starts)


def _system(pairs: _Pairs, keys: Sequence[str], problems: _Problems) -> pa.Array:
    """The sections of annotations and message properties, from a column of system properties."""
    _checked_names(pairs, problems)
    decoded: list[list[tuple[str, Any]]] = [[] for _ in keys]
    for row, name, value in pairs.items():
        try:
            decoded[row].append((name, _from_json(name, value)))
        except ValueError as problem:
            problems.setdefault(row, str(problem))
    encoded = list[bytes]()
    for row, key in enumerate(keys):
        try:
            encoded.append(encoder.encode_system(decoded[row], key))
        except ValueError as problem:
            problems.setdefault(row, str(problem))
            encoded.append(b"")
    return pa.array(encoded, pa.large_binary())


def _events(events: pa.Array, groups: Sequence[_Group], envelopes: Sequence[bytes], codes: Any) -> Events:
    """The `events`, which are sorted by the numbers of their groups (`codes`)."""
    found: Events = {}
    data, starts = memoryview(events.buffers()[2]), memoryview(encoder.ends(events))
    bounds = np.searchsorted(codes, np.arange(len(groups) + 1)).tolist()
    for group, envelope, (first, end) in zip(groups, envelopes, pairwise(bounds), strict=True):
        if first < end:
            found.setdefault(group.partition, []).append(Keyed(envelope, data, starts, first, end))
    return found


class _Pairs(NamedTuple):
    """Names and values of properties. Those of a row begin at its number in `starts`, and end at the next."""

    starts: Any
    names: pa.Array
    values: pa.Array

    def items(self) -> Iterator[tuple[int, Any, Any]]:
        """The row, name and value of each pair."""
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)).tolist()
        return zip(rows, self.names.to_pylist(), self.values.to_pylist(), strict=True)


def _pairs(column: pa.Array) -> _Pairs:
    """The pairs of a column of maps, or of headers as in Spark's Kafka sink, whose names may be null."""
    ends = column.offsets.to_numpy()
    within, rows = slice(ends[0], ends[-1]), np.repeat(np.arange(len(column)), np.diff(ends))
    valid = np.asarray(column.is_valid())[rows]
    if isinstance(column, pa.MapArray):
        names, values = column.keys[within], column.items[within]
    else:
        headers = column.values[within]
        names, values = headers.flatten()
        valid &= np.asarray(headers.is_valid())
    if not valid.all():
        rows, names, values = rows[valid], names.filter(pa.array(valid)), values.filter(pa.array(valid))
    return _Pairs(np.searchsorted(rows, np.arange(len(column) + 1)), names, values)


def _checked_names(pairs: _Pairs, problems: _Problems) -> pa.Array:
    """The encoded names."""
    starts = pairs.starts
    for pair in np.flatnonzero(pairs.names.is_null()):
        problems.setdefault(int(np.searchsorted(starts, pair, "right")) - 1, "a header has no key")
    names = encoder.encode_names(_binary(pairs.names).fill_null(b""))
    rows = encoder.regrouped(names, starts)
    # rows usually have the same names as the row before
    different = np.flatnonzero(np.append(True, encoder.differ(rows[1:], rows[:-1])))
    known: dict[bytes, str | None] = {}
    runs = pairwise([*different.tolist(), len(rows)])
    for (first, end), raw in zip(runs, rows.take(pa.array(different)).to_pylist(), strict=True):
        if SALT + raw not in known:
            known[SALT + raw] = _repeated(pairs.names[starts[first] : starts[first + 1]].to_pylist())
        if problem := known[SALT + raw]:
            for row in range(first, end):
                problems.setdefault(row, problem)
    return names


def _repeated(names: list[str]) -> str | None:
    """The problem of a row with several properties of the same name."""
    counts = Counter(TEXT_SALT + (name or "") for name in names)
    if len(counts) == len(names):
        return None
    return f"it has several values of {redacted(counts.most_common(1)[0][0].removeprefix(TEXT_SALT))}"


def _without_invalid_text(batch: pa.RecordBatch, columns: SinkColumns) -> tuple[pa.RecordBatch, _Problems]:
    """The batch with nulls in the rows whose strings are not UTF-8: casts in Spark can produce these."""
    fields = (columns.body, columns.key, columns.partition, columns.properties, columns.system, columns.headers)
    used = batch.select([index for index in fields if index is not None])
    if _is_utf8(used):
        return batch, {}
    rows = [row if _is_utf8(used.take(pa.array([row]))) else None for row in range(batch.num_rows)]
    return batch.take(pa.array(rows)), {row: "a string is not UTF-8" for row, valid in enumerate(rows) if valid is None}


def _is_utf8(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _binary(column: pa.Array) -> pa.Array:
    """The bytes of strings or binary. Large, because the bytes of a batch's events may be more than 2 GB."""
    return column.cast(pa.large_binary())


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
