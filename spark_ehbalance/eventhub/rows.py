"""Converts events to rows with the columns of the Scala connector."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from spark_ehbalance.eventhub import arrays

_T = TypeVar("_T")

SPARK_SCHEMA = (
    "body binary, partition string, offset string, sequenceNumber bigint, enqueuedTime timestamp, publisher string, "
    "partitionKey string, properties map<string,string>, systemProperties map<string,string>"
)

TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())

ARROW_SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("partition", pa.string()),
        ("offset", pa.string()),
        ("sequenceNumber", pa.int64()),
        ("enqueuedTime", TIME),
        ("publisher", pa.string()),
        ("partitionKey", pa.string()),
        ("properties", _MAP),
        ("systemProperties", _MAP),
    ]
)

#: The names of all columns.
COLUMNS = frozenset(ARROW_SCHEMA.names)

SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME = b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"
PARTITION_KEY, PUBLISHER = b"x-opt-partition-key", b"x-opt-publisher"

#: Annotations that have their own column.
COLUMN_ANNOTATIONS = frozenset((SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME, PARTITION_KEY, PUBLISHER))

#: The annotation that counts a geo-replicated hub's promotions, and its value in other hubs. `systemProperties` omits
#: that value: the service sends it with every event, so no row's map would be empty.
EPOCH, NO_EPOCH = b"x-opt-sequence-number-epoch", -1

#: Salt for hashed bytes and strings, so that no sender can choose colliding ones. Python's own hashes are predictable,
#: because Spark's workers run with PYTHONHASHSEED=0.
SALT = secrets.token_bytes(8)
TEXT_SALT = SALT.hex()

#: The input for a row: the body or None; a map of the message properties and all annotations, which `record_batch`
#: modifies; and the application properties.
Event = tuple[bytes | None, dict[Any, Any], Mapping[Any, Any]]

#: Keys in `systemProperties` of an unreadable event: the reason, and the event's bytes in base64.
REASON, RAW = b"ehbalance-malformed", b"ehbalance-raw"

#: The values of the option `onMalformed`: unreadable events fail the query, become rows with their readable fields, or
#: are skipped. An unreadable sequence number always fails the query, because the next position is unknown.
POLICIES = FAIL, KEEP, SKIP = ("fail", "keep", "skip")

#: The sequence numbers that fit their column, and the largest time in milliseconds that fits its column, which is in
#: microseconds.
_SEQUENCE_NUMBERS = range(-(2**63), 2**63)
MAX_TIME = _SEQUENCE_NUMBERS[-1] // 1000
_TIMES = range(-MAX_TIME, MAX_TIME + 1)


class Binary(bytes):
    """A value sent as AMQP binary; plain `bytes` were sent as text."""

    __slots__ = ()


class Key(bytes):
    """A key of a large map, with a hash that no sender can predict. Looking it up with plain `bytes` fails."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(SALT + self)


def large_map_key(key: Any) -> bytes:
    """The text of `key` as a `Key`; plain `bytes` for a known annotation. Raises TypeError for a list or a map."""
    if isinstance(key, list | dict):
        raise TypeError("a key is a list or a map")
    text = key if isinstance(key, bytes) else _text(key).encode()
    return next((name for name in (*COLUMN_ANNOTATIONS, EPOCH) if name == text), None) or Key(text)


class UnreadableError(Exception):
    """An event cannot be read. `known` contains the readable annotations that have a column."""

    def __init__(self, reason: str, known: Mapping[Any, Any] | None = None) -> None:
        super().__init__(reason)
        self.known = {key: value for key, value in (known or {}).items() if key in COLUMN_ANNOTATIONS}


def check(system: Mapping[Any, Any]) -> None:
    """Raise `UnreadableError` if the sequence number is missing, or if it or the time does not fit its column."""
    number, time = system.get(SEQUENCE_NUMBER), system.get(ENQUEUED_TIME)
    if not _fits(number, _SEQUENCE_NUMBERS):
        problem = "it has no sequence number" if number is None else "its sequence number does not fit the column"
        raise UnreadableError(problem, system)
    if time and not _fits(time, _TIMES):
        raise UnreadableError("its time does not fit the column", system)


def _fits(value: Any, column: range) -> bool:
    return type(value) is int and value in column


def unreadable(raw: bytes, error: UnreadableError) -> Event:
    """The substitute for an unreadable event: its known annotations, the reason, and its `raw` bytes."""
    system = {SEQUENCE_NUMBER: None, **error.known, REASON: str(error).encode(errors="replace")}
    for key, column in ((SEQUENCE_NUMBER, _SEQUENCE_NUMBERS), (ENQUEUED_TIME, _TIMES)):
        if not _fits(system.get(key), column):
            system[key] = None
    return None, {**system, RAW: base64.b64encode(raw)}, {}


def leave_out_no_epoch(system: dict[Any, Any]) -> None:
    """Remove the epoch of a hub that is not geo-replicated."""
    epoch = system.get(EPOCH)
    if type(epoch) is int and epoch == NO_EPOCH:
        del system[EPOCH]


def data_body(parts: Iterable[bytes | None]) -> bytes | None:
    """The body of an event from its data sections; None if there are none, or all of them are null."""
    present = [part for part in parts if part is not None]
    return b"".join(present) if present else None


def sequence_body(parts: Iterable[Iterable[Any]]) -> bytes | None:
    """The body of an event sent as AMQP sequences, which are converted to text because they are not bytes."""
    return value_body([item for part in parts for item in part])


def value_body(value: Any) -> bytes | None:
    """The body of an event sent as an AMQP value: the bytes of text and binary, None for null, and the text of any
    other value."""
    return value if value is None or isinstance(value, bytes) else _TEXT_OF.get(type(value), _json)(value).encode()


class Rows(NamedTuple):
    """A batch, and the indices of the rows that replace unreadable events, each with the problem."""

    batch: pa.RecordBatch
    unreadable: Mapping[int, str] = MappingProxyType({})


def schema_of(columns: Collection[str]) -> pa.Schema:
    """`ARROW_SCHEMA` with only these columns and the sequence number, which readers always need."""
    return pa.schema([field for field in ARROW_SCHEMA if field.name in columns or field.name == "sequenceNumber"])


def from_columns(schema: pa.Schema, **columns: Callable[[], pa.Array]) -> pa.RecordBatch:
    """A record batch of `schema`. Calls only the functions in `columns` that it needs."""
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def record_batch(
    events: Iterable[Event], partition: str, *, json_properties: bool, schema: pa.Schema = ARROW_SCHEMA
) -> pa.RecordBatch:
    """`events` of `partition` as a record batch of `schema`, which `schema_of` returned.

    Property values: strings stay unchanged, binary becomes a JSON array of signed bytes, and anything else becomes JSON
    text. With `json_properties`, all values become JSON text, as in the Scala connector. If several keys have the same
    text, the last key wins.
    """
    # No event object is kept, because many live objects would keep Python's garbage collector busy.
    bodies, columns = list[Any](), {name: list[Any]() for name in COLUMN_ANNOTATIONS}
    own, others = Maps(json_properties), Maps(json_properties)
    with_own, with_others = "properties" in schema.names, "systemProperties" in schema.names
    for body, system, properties in events:
        bodies.append(body)
        for name, column in columns.items():
            column.append(system.pop(name, None))
        if with_own:
            own.add(properties)
        if with_others:
            leave_out_no_epoch(system)
            others.add(system)
    return from_columns(
        schema,
        body=lambda: arrays.from_texts(bodies, pa.binary()),
        partition=lambda: arrays.repeated(partition, len(bodies)),
        offset=lambda: _texts(columns[OFFSET]),
        sequenceNumber=lambda: arrays.from_integers(columns[SEQUENCE_NUMBER]),
        enqueuedTime=lambda: _times(columns[ENQUEUED_TIME]),
        publisher=lambda: _texts(columns[PUBLISHER]),
        partitionKey=lambda: _texts(columns[PARTITION_KEY]),
        properties=own.column,
        systemProperties=others.column,
    )


def _times(milliseconds: Iterable[int | None]) -> pa.TimestampArray:
    return arrays.from_integers([time * 1000 if time else None for time in milliseconds]).view(TIME)


def sequence_numbers(batch: pa.RecordBatch) -> pa.Int64Array:
    """The ascending sequence numbers of a record batch; null where the number is unreadable."""
    return batch.column("sequenceNumber")


class CheckedRows(NamedTuple):
    """The rows to return, and the position after them. `failure` is the reason why the next event fails the range,
    `skipped` the number of skipped events, and `problem` the reason why the first of them was skipped."""

    batch: pa.RecordBatch
    first: int | None  # sequence number of the first event, None if there is none
    next: int | None  # the lowest sequence number that the next event can have, None if unknown
    failure: str | None = None
    skipped: int = 0
    problem: str | None = None


def until_gap(rows: Rows, expected: int | None) -> Rows:
    """The prefix of events with consecutive sequence numbers, and the event after it if that event has no sequence
    number.

    `expected` is the first event's expected sequence number; None allows any.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    numbered = next((at for at in sorted(unreadable) if not numbers[at].is_valid), len(numbers))
    if numbered:
        values = arrays.to_numpy(numbers.slice(0, numbered))
        wrong = values != np.arange(len(values)) + (values[0] if expected is None else expected)
        if wrong.any():
            end = int(wrong.argmax())
            return Rows(batch.slice(0, end), {at: why for at, why in unreadable.items() if at < end})
    end = numbered + 1
    return Rows(batch.slice(0, end), {at: why for at, why in unreadable.items() if at < end})


def apply_policy(rows: Rows, expected: int | None, policy: str) -> CheckedRows:
    """Apply the `onMalformed` policy. The result ends before an event that fails the range.

    `expected` is the lowest possible sequence number of the first event, None if unknown.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    if not len(numbers):
        return CheckedRows(batch, None, expected)
    if not unreadable:
        return CheckedRows(batch, numbers[0].as_py(), numbers[-1].as_py() + 1)
    known, failure, skipped = numbers.to_pylist(), None, list[int]()
    for at in sorted(unreadable):
        number, lowest = known[at], known[at - 1] + 1 if at else expected
        if number is None or (lowest is not None and number < lowest):
            failure = f"an event at {lowest} or later has no readable sequence number"
        elif policy == FAIL:
            failure = f"event {number} is malformed: {unreadable[at]}"
        if failure is not None:
            batch, expected = batch.slice(0, at), lowest
            break
        skipped += [at] if policy == SKIP else []
    else:
        expected = known[-1] + 1
    first = known[0] if batch.num_rows else None
    if not skipped:
        return CheckedRows(batch, first, expected, failure)
    kept = np.ones(batch.num_rows, np.bool_)
    kept[skipped] = False
    batch = batch.take(arrays.from_numpy(np.flatnonzero(kept)))
    problem = f"event {known[skipped[0]]} is malformed: {unreadable[skipped[0]]}"
    return CheckedRows(batch, first, expected, failure, len(skipped), problem)


class Maps:
    """Builds a column of maps from AMQP values. `as_json` has the meaning of `json_properties` in `record_batch`."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._keys: list[Any] = []
        self._values: list[str | bytes] = []
        self._offsets = [0]

    def add(self, row: Mapping[Any, Any]) -> None:
        """Add a row."""
        if row:
            self._keys += row
            self._values += _forms(
                row.values(), self._as_json
            )  # converted now, because some values take more memory than their text
        self._offsets.append(len(self._keys))

    def column(self) -> pa.MapArray:
        """All rows."""
        try:
            if not all(type(key) is bytes for key in self._keys):
                raise pa.ArrowInvalid("keys of different types may have the same text")
            keys = arrays.from_texts(self._keys, pa.string())
        except pa.ArrowInvalid:
            keys = self._distinct_keys()
        return pa.MapArray.from_arrays(arrays.from_numpy(np.array(self._offsets, np.int32)), keys, _texts(self._values))

    def _distinct_keys(self) -> pa.StringArray:
        keys, values, offsets = list[str](), list[str | bytes](), [0]
        for start, end in pairwise(self._offsets):
            row = _by_text(self._keys[start:end], self._values[start:end])
            keys += row[0]
            values += row[1]
            offsets.append(len(keys))
        self._values, self._offsets = values, offsets
        return _texts(keys)


def _by_text(keys: Iterable[Any], values: Iterable[_T]) -> tuple[list[str], Collection[_T]]:
    """The distinct texts of `keys`, and the last value of each."""
    last = {TEXT_SALT + _text(key): value for key, value in zip(keys, values, strict=True)}
    return [key[len(TEXT_SALT) :] for key in last], last.values()


def empty_maps(count: int) -> pa.MapArray:
    """A column of `count` empty maps."""
    none = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(arrays.from_numpy(np.zeros(count + 1, np.int32)), none, none)


def texts(values: Iterable[Any], as_json: bool) -> pa.StringArray:
    """Values of maps as strings. `as_json` has the same meaning as in `Maps`."""
    return _texts(_forms(values, as_json))


def _forms(values: Iterable[Any], as_json: bool) -> list[str | bytes]:
    if as_json:
        return list(map(_json, values))
    return [value if type(value) is bytes else _TEXT_OF.get(type(value), _json)(value) for value in values]


def optional_text(value: Any) -> str | None:
    """The text of an annotation that may be missing."""
    return None if value is None else _text(value)


def _texts(values: list[Any]) -> pa.StringArray:
    try:
        return arrays.from_texts(values, pa.string())  # bytes as well, if they are UTF-8
    except (TypeError, UnicodeEncodeError, pa.ArrowException):
        return pa.array(map(optional_text, values), pa.string())


def _text(value: Any) -> str:
    """The text of a key, or of a value in a text column. Bytes that are not UTF-8 are treated as binary."""
    if not isinstance(value, bytes):
        return _json(value) if isinstance(value, (list, dict)) else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _bytes(value)


def _bytes(value: bytes) -> str:
    return f"[{','.join(map(_SIGNED.__getitem__, value))}]"


#: Each byte as the Scala connector writes it: signed, as in Java.
_SIGNED = [str(byte - 256 * (byte > 127)) for byte in range(256)]


def _float(value: float) -> str:
    return repr(value) if isfinite(value) else _JSON.encode(value)


#: Conversions of these types to JSON. `JSONEncoder` takes 3 µs per value, and a message may have a million values.
_NUMBERS: dict[type, Callable[[Any], str]] = {
    int: repr,
    float: _float,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "null",
}

#: Conversions of the most frequent types to text. The result equals their JSON (strings stay unchanged), but is faster.
_TEXT_OF: dict[type, Callable[[Any], str]] = {str: str, int: repr, float: _float, Binary: _bytes}


def _json(value: Any) -> str:
    """The JSON text of a value, which is nested at most `values.MAX_DEPTH` deep."""
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, dict):
        pairs = zip(*_by_text(value, value.values()), strict=True)
        return f"{{{', '.join(f'{_JSON.encode(key)}: {_json(item)}' for key, item in pairs)}}}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return _bytes(value) if isinstance(value, Binary) else _JSON.encode(value.decode())
        except UnicodeDecodeError:
            return _bytes(value)
    if isinstance(value, datetime):
        return _JSON.encode(value.isoformat())
    if (number := _NUMBERS.get(type(value))) is not None:
        return number(value)
    return _JSON.encode(value if isinstance(value, str) else str(value))


_JSON = json.JSONEncoder(ensure_ascii=False)
