"""Events as rows: the columns of the source, and how an event fills them, whichever way it was received.

The columns are those of the Scala connector, so that jobs move over unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
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


class Event(NamedTuple):
    """What a row is made of: `system` has the message properties and all annotations."""

    body: bytes
    system: Mapping[bytes, Any]
    properties: Mapping[Any, Any]


def received(event: EventData) -> Event:
    """An event as the client gives it."""
    parts: Any = event.body
    if event.body_type == AmqpMessageBodyType.DATA:
        body = parts if isinstance(parts, bytes) else b"".join(parts)
    elif event.body_type == AmqpMessageBodyType.SEQUENCE:
        body = sequence_body(parts)
    else:
        body = value_body(parts)
    return Event(body, event.system_properties, event.properties or {})


def sequence_body(parts: Iterable[Iterable[Any]]) -> bytes:
    """The body of an event that was sent as AMQP sequences: it has no bytes of its own, so its text stands for it."""
    return value_body([item for part in parts for item in part])


def value_body(value: Any) -> bytes:
    """The body of an event that was sent as an AMQP value: its bytes if it has any, else its text."""
    return value if isinstance(value, bytes) else _TEXT_OF.get(type(value), _json)(value).encode()


def record_batch(events: Sequence[Event], partition: str, *, json_properties: bool) -> pa.RecordBatch:
    """`events` of `partition` as a record batch of `ARROW_SCHEMA`.

    Property values are strings as they are and anything else as JSON text; with `json_properties` all are JSON text,
    as the Scala connector has them.
    """
    system = [event.system for event in events]
    columns = [
        pa.array([event.body for event in events], pa.binary()),
        pa.repeat(pa.scalar(partition, pa.string()), len(events)),
        _texts([each.get(OFFSET) for each in system]),
        pa.array([each[NUMBER] for each in system], pa.int64()),
        times([each.get(TIME) or None for each in system]),
        _texts([each.get(PUBLISHER) for each in system]),
        _texts([each.get(KEY) for each in system]),
        maps([pairs(event.properties.items(), json_properties) for event in events]),
        maps([pairs(other(each), json_properties) for each in system]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def numbers(batch: pa.RecordBatch) -> pa.Int64Array:
    """The sequence numbers of a record batch's rows, which rise."""
    return batch.column("sequenceNumber")


def times(milliseconds: Any) -> pa.Array:
    """The column of times from milliseconds since 1970."""
    return pa.array(milliseconds, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def maps(rows: Iterable[Sequence[tuple[str, str]]]) -> pa.MapArray:
    """A column of maps from the pairs of each row."""
    offsets = [0]
    flat: list[tuple[str, str]] = []
    for row in rows:
        flat += row
        offsets.append(len(flat))
    keys, values = zip(*flat, strict=True) if flat else ((), ())
    texts = (pa.array(each, pa.string()) for each in (keys, values))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *texts)


def other(system: Mapping[bytes, Any]) -> list[tuple[bytes, Any]]:
    """What of `system` has no column of its own."""
    return [each for each in system.items() if each[0] not in COLUMN_ANNOTATIONS]


def pairs(items: Iterable[tuple[Any, Any]], as_json: bool) -> list[tuple[str, str]]:
    """A map of AMQP values as texts."""
    if as_json:
        return [(_text(key), _json(value)) for key, value in items]
    return [(_TEXT_OF.get(type(key), str)(key), _TEXT_OF.get(type(value), _json)(value)) for key, value in items]


def optional_text(value: Any) -> str | None:
    """The text of an annotation that may be missing."""
    return None if value is None else _text(value)


def _texts(values: list[Any]) -> pa.Array:
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


#: How the types that nearly all values have become text.
_TEXT_OF: dict[type, Callable[[Any], str]] = {bytes: _utf8, str: str, int: repr}


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
