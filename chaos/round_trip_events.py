"""The events of the round trip: what event `number` of a seed is, and as rows of a frame that is written. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

PARTITIONS = 8

#: The numbers are cut into as many parts, each of which one task writes; a key's events are all in one.
SLICES = 8

#: Different keys.
_KEYS = 4000

#: In which alphabets keys are written.
_ALPHABETS = ("key-{}", "ключ {}", "鍵-{}-🔑", "clé/{}")

#: The share of events by the most bytes of their body, the rarest last.
_SIZES = ((0.93, 300), (0.99, 3_000), (0.999, 20_000), (1.0, 400_000))

#: Properties: an event's number, where its body does not begin with it, and the mark of events with a partition.
NUMBER, PINNED = "number", "pinned"

FRAME = "body binary, partitionKey string, partitionId int, properties map<string,string>"

_ROWS = pa.schema(
    [
        ("body", pa.binary()),
        ("partitionKey", pa.string()),
        ("partitionId", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


class Event(NamedTuple):
    body: bytes | None
    key: str | None
    partition: int | None
    properties: dict[str, Any]


def event(seed: int, number: int, total: int) -> Event:
    """Event `number` of `total`."""
    rng = random.Random(f"{seed} {number}")
    key = partition = None
    properties: dict[str, Any] = {}
    kind = rng.random()
    if kind < 0.6:
        which = number * SLICES // total + SLICES * rng.randrange(_KEYS // SLICES)
        key = _ALPHABETS[which % len(_ALPHABETS)].format(which)
    elif kind < 0.75:
        partition = rng.randrange(PARTITIONS)
        properties[PINNED] = True
    if rng.random() < 0.6:
        properties |= {name: value for name, value in _values(rng).items() if rng.random() < 0.5}
    share = rng.random()
    body: bytes | None = b"%d;" % number + rng.randbytes(rng.randrange(next(m for s, m in _SIZES if share <= s)))
    if rng.random() < 0.05:
        body = rng.choice((b"", None))
        properties[NUMBER] = number
    return Event(body, key, partition, properties)


def _values(rng: random.Random) -> dict[str, Any]:
    return {
        "text": f"some text {rng.randrange(100)}",
        "unicode ⚙": 'Größe \u2028\x00\t" 𝄞',
        "empty": "",
        "json": '{"a": [1, 2]}',
        "small": rng.randrange(-100, 100),
        "long": rng.randrange(-(1 << 63), 1 << 63),
        "double": rng.uniform(-1e9, 1e9),
        "whole": float(rng.randrange(1000)),
        "flag": rng.random() < 0.5,
        "binary": rng.randbytes(rng.randrange(40)),
        "none": None,
        "long text": "x" * rng.randrange(250, 600),
    }


def number_of(body: bytes | None, properties: dict[str, Any]) -> int:
    """The number of an event that was read; -1 if it is none of ours."""
    given = properties.get(NUMBER)
    try:
        return given if isinstance(given, int) else int((body or b"").partition(b";")[0])
    except ValueError:
        return -1


def written(batches: Iterable[pa.RecordBatch], seed: int, total: int) -> Iterator[pa.RecordBatch]:
    """The rows of the numbers in `batches`, whose properties are JSON."""
    for batch in batches:
        events = [event(seed, number, total) for number in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_pylist([_row(each) for each in events], _ROWS)


def _row(given: Event) -> dict[str, Any]:
    properties = [(name, as_json(value)) for name, value in given.properties.items()]
    return dict(zip(_ROWS.names, (given.body, given.key, given.partition, properties), strict=True))


def as_json(value: Any) -> str:
    """As the source writes it with `jsonProperties`: binary is an array of signed bytes."""
    if isinstance(value, bytes):
        value = [each - 256 if each > 127 else each for each in value]
    return json.dumps(value)


def from_json(text: str) -> Any:
    """The value behind a property that the source has read with `jsonProperties`."""
    value = json.loads(text)
    return bytes(each & 0xFF for each in value) if isinstance(value, list) else value
