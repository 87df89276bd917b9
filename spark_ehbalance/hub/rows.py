"""Events as rows: the columns of the source, and how an event fills them, whichever way it was received.

The columns are those of the Scala connector, so that jobs move over unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any
from uuid import UUID

import pyarrow as pa
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

SPARK_SCHEMA = (
    "body binary, partition string, offset string, sequenceNumber bigint, enqueuedTime timestamp, publisher string, "
    "partitionKey string, properties map<string,string>, systemProperties map<string,string>"
)

_MAP = pa.map_(pa.string(), pa.string())

ARROW_SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("partition", pa.string()),
        ("offset", pa.string()),
        ("sequenceNumber", pa.int64()),
        ("enqueuedTime", pa.timestamp("us", tz="UTC")),
        ("publisher", pa.string()),
        ("partitionKey", pa.string()),
        ("properties", _MAP),
        ("systemProperties", _MAP),
    ]
)

NUMBER, OFFSET, TIME = b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"
KEY, PUBLISHER = b"x-opt-partition-key", b"x-opt-publisher"

#: Annotations that have a column of their own.
COLUMN_ANNOTATIONS = frozenset((NUMBER, OFFSET, TIME, KEY, PUBLISHER))


#: What a row is made of: the body; the message properties and all annotations, which are taken apart for it; and the
#: application's properties.
Event = tuple[bytes, dict[Any, Any], Mapping[Any, Any]]


class UnfitError(ValueError):
    """Of the events, the one in `row` is the first that has a sequence number or a time that no column can hold."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row


def received(event: EventData) -> Event:
    """An event as the client gives it."""
    parts: Any = event.body
    if event.body_type == AmqpMessageBodyType.DATA:
        body = parts if isinstance(parts, bytes) else b"".join(parts)
    elif event.body_type == AmqpMessageBodyType.SEQUENCE:
        body = sequence_body(parts)
    else:
        body = value_body(parts)
    return body, {**event.system_properties}, event.properties or {}


def sequence_body(parts: Iterable[Iterable[Any]]) -> bytes:
    """The body of an event that was sent as AMQP sequences: it has no bytes of its own, so its text stands for it."""
    return value_body([item for part in parts for item in part])


def value_body(value: Any) -> bytes:
    """The body of an event that was sent as an AMQP value: its bytes if it has any, else its text."""
    return value if isinstance(value, bytes) else _TEXT_OF.get(type(value), _json)(value).encode()


def record_batch(events: Iterable[Event], partition: str, *, json_properties: bool) -> pa.RecordBatch:
    """`events` of `partition` as a record batch of `ARROW_SCHEMA`.

    Property values are strings as they are and anything else as JSON text; with `json_properties` all are JSON text,
    as the Scala connector has them. Raises `UnfitError`.
    """
    # No event is kept: many at a time would keep Python's garbage collector busy.
    bodies, offsets, sequence, moments, publishers, partition_keys = (list[Any]() for _ in range(6))
    own, others = Maps(), Maps()
    for body, system, properties in events:
        bodies.append(body)
        take = system.pop
        offsets.append(take(OFFSET, None))
        sequence.append(take(NUMBER))
        moments.append(take(TIME, None) or None)
        publishers.append(take(PUBLISHER, None))
        partition_keys.append(take(KEY, None))
        own.add(properties)
        others.add(system)
    numbered, enqueued = _numbers_and_times(sequence, moments)
    columns = [
        pa.array(bodies, pa.binary()),
        pa.repeat(pa.scalar(partition, pa.string()), len(bodies)),
        _texts(offsets),
        numbered,
        enqueued,
        _texts(publishers),
        _texts(partition_keys),
        own.column(json_properties),
        others.column(json_properties),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def numbers(batch: pa.RecordBatch) -> pa.Int64Array:
    """The sequence numbers of a record batch's rows, which rise."""
    return batch.column("sequenceNumber")


def _numbers_and_times(numbers: list[Any], milliseconds: list[Any]) -> tuple[pa.Array, pa.Array]:
    try:
        return pa.array(numbers, pa.int64()), times(milliseconds)
    except (pa.ArrowException, OverflowError) as error:
        if len(numbers) == 1:
            raise UnfitError(f"event {numbers[0]!r} with the time {milliseconds[0]!r} is no row: {error}", 0) from error
        for row in range(len(numbers)):
            try:
                _numbers_and_times(numbers[row : row + 1], milliseconds[row : row + 1])
            except UnfitError as unfit:
                unfit.row = row
                raise
        raise


def times(milliseconds: Any) -> pa.Array:
    """The column of times from milliseconds since 1970."""
    return pa.array(milliseconds, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


class Maps:
    """A column of maps in the making, from AMQP values."""

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._offsets = [0]

    def add(self, row: Mapping[Any, Any]) -> None:
        """The next row."""
        self._keys += row
        self._values += row.values()
        self._offsets.append(len(self._keys))

    def column(self, as_json: bool) -> pa.MapArray:
        """All rows; `as_json` as for `record_batch`."""
        keys = _texts([each if type(each) is bytes else str(each) for each in self._keys])
        return pa.MapArray.from_arrays(pa.array(self._offsets, pa.int32()), keys, texts(self._values, as_json))


def no_pairs(count: int) -> pa.MapArray:
    """A column of `count` empty maps."""
    none = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), none, none)


def texts(values: Iterable[Any], as_json: bool) -> pa.StringArray:
    """Values of maps as texts; `as_json` as for `record_batch`."""
    if as_json:
        return _texts(list(map(_json, values)))
    return _texts([each if type(each) is bytes else _TEXT_OF.get(type(each), _json)(each) for each in values])


def optional_text(value: Any) -> str | None:
    """The text of an annotation that may be missing."""
    return None if value is None else _text(value)


def _texts(values: list[Any]) -> pa.StringArray:
    try:
        return pa.array(values, pa.string())  # bytes too, if they are UTF-8
    except pa.ArrowException:
        return pa.array(map(optional_text, values), pa.string())


def _text(value: Any) -> str:
    return _utf8(value) if isinstance(value, bytes) else str(value)


def _utf8(value: bytes) -> str:
    # The client tells binary and text apart only by whether it is text.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _float(value: float) -> str:
    return repr(value) if isfinite(value) else _json(value)


#: How the types that nearly all values have become text: faster than as JSON, and the same.
_TEXT_OF: dict[type, Callable[[Any], str]] = {str: str, int: repr, float: _float}


def _json(value: Any) -> str:
    return _JSON.encode(_jsonable(value))


_JSON = json.JSONEncoder(ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return _utf8(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_text(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
