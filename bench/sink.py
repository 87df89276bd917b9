"""The CPU time of the sink's task code per event, from Arrow to the hub's acknowledgement, compared with that of
azure-eventhub's `EventHubProducerClient`, which sends the same events. Connecting and creating the rows are not
counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch

from bench.common import Bar, Bench, Log, Row, emulator, in_turns, ratios
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import WriteOptions
from spark_ehbalance.eventhub.sending.writing import WriteTask

PARTITIONS = 8

_PROPERTIES = {"device": "thermometer-17", "unit": "°C", "version": "2"}

#: Number of rows in a record batch that Spark passes to a writer.
_ROWS = 10_000

#: The client is much slower, so it sends this many times fewer events.
_CLIENT_EVENTS_DIVISOR = 3


class Shape(NamedTuple):
    """A shape of events. `keys` is the number of different partition keys, or 0 for none; `bytes` is the size of the
    body."""

    what: str
    keys: int = 0
    properties: bool = False
    bytes: int = 1024


SHAPES = [
    Shape("1 KB"),
    Shape("1 KB, 1,000 keys", keys=1000),
    Shape("1 KB, 1,000 keys, 3 properties", keys=1000, properties=True),
    Shape("100 B", bytes=100),
    Shape("100 B, a key each", keys=1 << 30, bytes=100),
]


def _bodies(shape: Shape, count: int) -> list[bytes]:
    return [b"%08d" % number + b"x" * (shape.bytes - 8) for number in range(count)]


def _key(shape: Shape, number: int) -> str | None:
    return f"key {number % shape.keys}" if shape.keys else None


def measure_ours(connection: Connection, shape: Shape, count: int) -> float:
    """The CPU time of a task of the sink whose links are open, in µs per event."""
    options = WriteOptions(connection)
    columns = SinkColumns(0, key=1 if shape.keys else None, properties=2 if shape.properties else None)
    properties = [*_PROPERTIES.items()] if shape.properties else None
    arrays = {
        "body": pa.array(_bodies(shape, count), pa.binary()),
        "key": pa.array([_key(shape, number) for number in range(count)], pa.string()),
        "properties": pa.array([properties] * count, pa.map_(pa.string(), pa.string())),
    }
    batches = pa.table(arrays).to_batches(_ROWS)
    WriteTask(options, columns).write([batches[0].slice(0, 1000)])  # opens the link
    cpu = time.process_time()
    WriteTask(options, columns).write(batches)
    return (time.process_time() - cpu) / count * 1e6


def measure_client(connection: Connection, shape: Shape, count: int) -> float:
    """The CPU time of the client, in µs per event. There is one batch per key, which is sent when it is full."""
    bodies, open_batches = _bodies(shape, count), dict[str | None, EventDataBatch]()
    with connection.producer_client() as producer:
        producer.send_event(EventData(b"opens the link"))
        cpu = time.process_time()
        for number, body in enumerate(bodies):
            key, event = _key(shape, number), EventData(body)
            if shape.properties:
                properties: Any = {**_PROPERTIES}
                event.properties = properties
            batch = open_batches.get(key) or producer.create_batch(partition_key=key)
            try:
                batch.add(event)
            except ValueError:  # it is full
                producer.send_batch(batch)
                batch = producer.create_batch(partition_key=key)
                batch.add(event)
            open_batches[key] = batch
        for batch in open_batches.values():
            producer.send_batch(batch)
        return (time.process_time() - cpu) / count * 1e6


def measure(_: Path, log: Log, *, shapes: Sequence[Shape], events: int, runs: int) -> Iterator[Row]:
    for shape in shapes:
        log(shape.what)
        with emulator(PARTITIONS) as server:
            ways = {"ours": partial(measure_ours, server.connection, shape, events)}
            ways["send_batch"] = partial(measure_client, server.connection, shape, events // _CLIENT_EVENTS_DIVISOR)
            found = in_turns(ways, runs)
            if (arrived := server.clear(PARTITIONS)) < (runs + 1) * (events + events // _CLIENT_EVENTS_DIVISOR):
                raise RuntimeError(f"only {arrived} events arrived")
        yield Row(shape.what, "µs CPU", found["ours"], {"send_batch": found["send_batch"]})
        yield Row(f"{shape.what}: less than send_batch", "×", ratios(found["send_batch"], found["ours"]))


BENCH = Bench(
    "sink",
    measure,
    compared_with="create_batch, add and send_batch of azure-eventhub",
    short={"shapes": SHAPES[2:3], "events": 3_000, "runs": 1},
    full={"shapes": SHAPES, "events": 30_000, "runs": 5},
    bars={f"{shape.what}: less than send_batch": Bar("least", 1.0) for shape in SHAPES},
)
