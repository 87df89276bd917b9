"""The sink without Spark: CPU of a task's code per event, from Arrow to the hub's answer, beside azure-eventhub's own
`EventHubProducerClient`: `create_batch`, `EventData`, `add` and `send_batch` for the same events.

Runs of both alternate, each in a process of its own. Connecting is not counted; making the rows is not either, for the
client as `bytes` and `dict`, for ours as Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient

from bench.common import HUB, Bar, Emulator, Log, Row, emulator
from bench.reader import PROCESSES, Cost, cost_since
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.sink.columns import Columns
from spark_ehbalance.sink.options import WriteOptions
from spark_ehbalance.sink.writing import Task

SUBJECT = "sink"

PARTITIONS = 8

#: What the rows of all measurements of the sink have.
KEYS, PROPERTIES = 1_000, {"device": "thermometer-17", "unit": "°C", "version": "2"}

#: Rows of a record batch: what Spark gives a writer.
_ROWS = 10_000

#: The client takes much longer, so it sends this many times fewer events.
_FEWER = 3

#: How many times less than `send_batch` it must cost.
_TIMES_LESS = Bar("least", 1.0)


class Shape(NamedTuple):
    """What the events are like. `keys`: how many different ones, 0 for none."""

    what: str
    size: int = 1024
    keys: int = 0
    properties: bool = False


SHAPES = [
    Shape("1 KB"),
    Shape("1 KB, 1,000 keys", keys=KEYS),
    Shape("1 KB, 1,000 keys, 3 properties", keys=KEYS, properties=True),
    Shape("100 B", size=100),
]


class _Events(NamedTuple):
    bodies: list[bytes]
    keys: list[str] | None
    properties: list[dict[str, str]] | None


def _events(shape: Shape, count: int) -> _Events:
    return _Events(
        [b"%08d" % number + b"x" * (shape.size - 8) for number in range(count)],
        [f"key {number % shape.keys}" for number in range(count)] if shape.keys else None,
        [{**PROPERTIES} for _ in range(count)] if shape.properties else None,
    )


def ours(connection: Connection, shape: Shape, count: int) -> Cost:
    """A task of the sink, with links that are open already."""
    options, given = WriteOptions(connection), _events(shape, count)
    columns = Columns(0, key=1 if shape.keys else None, properties=2 if shape.properties else None)
    none: list[Any] = [None] * count
    arrays = {
        "body": pa.array(given.bodies, pa.binary()),
        "key": pa.array(given.keys or none, pa.string()),
        "properties": pa.array(
            [[*each.items()] for each in given.properties or ()] or none, pa.map_(pa.string(), pa.string())
        ),
    }
    batches = pa.table(arrays).to_batches(_ROWS)
    warm_up = batches[0].slice(0, min(count, KEYS))  # each key, so that all links are open
    Task(options, columns).write([warm_up])
    begun, cpu = time.time(), time.process_time()
    Task(options, columns).write(batches)
    return cost_since(begun, cpu, count)


def client(connection: Connection, shape: Shape, count: int) -> Cost:
    """The client, with a batch for each key, which is sent when it is full or all events are in one."""
    given = _events(shape, count)
    with connection.producer_client() as producer:
        producer.send_event(EventData(b"opens the link"))
        begun, cpu = time.time(), time.process_time()
        _send(producer, given)
        return cost_since(begun, cpu, count)


def _send(producer: EventHubProducerClient, given: _Events) -> None:
    open_batches: dict[str | None, EventDataBatch] = {}
    for number, body in enumerate(given.bodies):
        key = given.keys[number] if given.keys else None
        event = EventData(body)
        if given.properties:
            event.properties = given.properties[number]  # type: ignore[assignment]
        batch = open_batches.get(key)
        if batch is None:
            batch = open_batches[key] = producer.create_batch(partition_key=key)
        try:
            batch.add(event)
        except ValueError:  # it is full
            producer.send_batch(batch)
            batch = open_batches[key] = producer.create_batch(partition_key=key)
            batch.add(event)
    for batch in open_batches.values():
        producer.send_batch(batch)


def measure(_: Path, log: Log, *, shapes: Sequence[Shape], events: int, runs: int) -> Iterator[Row]:
    """All `shapes`."""
    ways: dict[str, tuple[Callable[..., Cost], int]] = {"": (ours, events), "send_batch": (client, events // _FEWER)}
    for shape in shapes:
        found: dict[str, list[Cost]] = {way: [] for way in ways}
        with emulator(PARTITIONS) as server, ExitStack() as stack:
            processes = {way: stack.enter_context(ProcessPoolExecutor(1, PROCESSES)) for way in ways}
            for run in range(runs + 1):
                log(f"sink, without Spark, {shape.what}: run {run} of {runs}")
                for way, (send, count) in ways.items():
                    before = arrived(server)
                    cost = processes[way].submit(send, server.connection, shape, count).result()
                    if (rows := arrived(server) - before) < count:
                        raise RuntimeError(f"{way or 'the sink'} has sent {rows} of {count} events")
                    found[way] += [cost] if run else []  # the first run warms up
        yield from _rows(shape.what, found)


def arrived(server: Emulator) -> int:
    """How many events a hub has been sent. What it holds is deleted, because it is held in memory."""
    events = 0
    for partition in range(PARTITIONS):
        following = server.control.partition_state(HUB, partition).next_sequence_number
        server.control.trim(HUB, partition, following)
        events += following
    return events


def _rows(what: str, found: dict[str, list[Cost]]) -> Iterator[Row]:
    ours, theirs = ([each.cpu for each in costs] for costs in found.values())
    yield Row(SUBJECT, f"without Spark, {what}", "µs CPU", tuple(ours), None, {"send_batch": tuple(theirs)})
    less = tuple(other / one for one, other in zip(ours, theirs, strict=True))
    yield Row(SUBJECT, f"without Spark, {what}: less than send_batch", "times", less, _TIMES_LESS)
