"""Events as rows: the columns of the source, and how an event fills them.

The columns are those of the Scala connector, so that jobs move over unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
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

_PUBLISHER = b"x-opt-publisher"

#: Annotations that have a column of their own.
_COLUMN_ANNOTATIONS = frozenset(
    (b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time", b"x-opt-partition-key", _PUBLISHER)
)


def record_batch(events: Sequence[EventData], partition: str, *, json_properties: bool) -> pa.RecordBatch:
    """`events` of `partition` as a record batch of `ARROW_SCHEMA`.

    Property values are strings as they are and anything else as JSON text; with `json_properties` all are JSON text,
    as the Scala connector has them.
    """
    system = [event.system_properties for event in events]
    columns = [
        pa.array([_body(event) for event in events], pa.binary()),
        pa.repeat(pa.scalar(partition, pa.string()), len(events)),
        pa.array([event.offset for event in events], pa.string()),
        pa.array([event.sequence_number for event in events], pa.int64()),
        pa.array([event.enqueued_time for event in events], pa.timestamp("us", tz="UTC")),
        pa.array([_optional_text(properties.get(_PUBLISHER)) for properties in system], pa.string()),
        pa.array([_optional_text(event.partition_key) for event in events], pa.string()),
        pa.array([_pairs((event.properties or {}).items(), json_properties) for event in events], _MAP),
        pa.array([_pairs(_other(properties), json_properties) for properties in system], _MAP),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _body(event: EventData) -> bytes:
    body: Any = event.body
    if event.body_type == AmqpMessageBodyType.DATA:
        return body if isinstance(body, bytes) else b"".join(body)
    if isinstance(body, bytes):
        return body
    # Any other AMQP value has no bytes of its own: its text stands for it.
    if event.body_type == AmqpMessageBodyType.SEQUENCE:
        body = [item for part in body for item in part]
    return _value(body).encode()


def _other(system: Mapping[bytes, Any]) -> Iterable[tuple[bytes, Any]]:
    return ((key, value) for key, value in system.items() if key not in _COLUMN_ANNOTATIONS)


def _pairs(items: Iterable[tuple[Any, Any]], as_json: bool) -> list[tuple[str, str]]:
    return [(_text(key), _json(value) if as_json else _value(value)) for key, value in items]


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    return _utf8(value) if isinstance(value, bytes) else str(value)


def _value(value: Any) -> str:
    return _text(value) if isinstance(value, (str, bytes)) else _json(value)


def _utf8(value: bytes) -> str:
    # The client tells binary and text apart only by whether it is text.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _json(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False)


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
