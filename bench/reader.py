"""The CPU time of a reader per event, from the socket to Arrow with all columns, compared with the client's own
`receive_batch`, which does not create Arrow data. Connecting is not counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from azure.eventhub import EventData, EventHubProducerClient, PartitionContext
from azure.eventhub.amqp import AmqpAnnotatedMessage

from bench.common import GROUP, HUB, Bar, Bench, Emulator, Log, Row, emulator, in_turns, ratios
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver

PREFETCH = 1000  # the source's default

#: The client is much slower, so it reads this many times fewer events.
_CLIENT_EVENTS_DIVISOR = 3


def _fill_plain(server: Emulator, events: int) -> None:
    server.fill(0, os.urandom(1024), events)


def _fill_with_properties(server: Emulator, events: int) -> None:
    properties: Any = [{"device": "thermometer-17", "id": f"{n:08d}"} for n in range(events)]
    server.call("append", HUB, 0, [os.urandom(1024)] * events, properties)


def _fill_distinct(server: Emulator, events: int) -> None:
    """Send events whose body is an AMQP value, and which have an annotation and a property with unique names."""
    with EventHubProducerClient.from_connection_string(server.address) as client:
        for start in range(0, events, 500):  # a batch has at most 1 MB
            batch = [
                AmqpAnnotatedMessage(
                    value_body="x" * 1000, annotations={f"x-{n}": n}, application_properties={f"p{n}": n}
                )
                for n in range(start, min(start + 500, events))
            ]
            client.send_batch(batch, partition_id="0")  # type: ignore[arg-type]


#: Shape of events → function that fills a hub with them.
SHAPES: dict[str, Callable[[Emulator, int], None]] = {
    "1 KB": _fill_plain,
    "1 KB, 2 properties, one unique": _fill_with_properties,
    "1 KB, no two alike": _fill_distinct,
}


def measure_ours(connection: Connection, events: int) -> float:
    """The CPU time of this package's receiver, in µs per event."""
    with closing(
        Receiver(PartitionAddress(connection, GROUP, "0"), 0, owner_level=None, prefetch=PREFETCH)
    ) as receiver:
        left = events - receiver.receive(1, 10.0).num_rows
        cpu = time.process_time()
        while left:
            left -= receiver.receive(min(10_000, left), 10.0).num_rows
        return (time.process_time() - cpu) / events * 1e6


def measure_client(connection: Connection, events: int) -> float:
    """The CPU time of `EventHubConsumerClient.receive_batch`, in µs per event. The callback only counts the events."""
    consumer = connection.consumer_client(GROUP)
    got = first = 0
    cpu = cost = 0.0

    def count(context: PartitionContext, batch: list[EventData]) -> None:
        nonlocal got, first, cpu, cost
        got += len(batch)
        if not first:
            cpu, first = time.process_time(), got
        if got >= events and not cost:
            cost = (time.process_time() - cpu) / (got - first) * 1e6
            consumer.close()

    most = min(PREFETCH, events // 10)  # the first batch is not counted
    start: dict[str, Any] = {"partition_id": "0", "starting_position": "-1"}
    consumer.receive_batch(count, max_batch_size=most, prefetch=most, **start)
    return cost


def measure(_: Path, log: Log, *, shapes: Sequence[str], events: int, runs: int) -> Iterator[Row]:
    for shape in shapes:
        log(shape)
        with emulator(1) as server:
            SHAPES[shape](server, events)
            ways = {"ours": partial(measure_ours, server.connection, events)}
            ways["receive_batch"] = partial(
                measure_client, server.connection, max(1000, events // _CLIENT_EVENTS_DIVISOR)
            )
            found = in_turns(ways, runs)
        yield Row(shape, "µs CPU", found["ours"], {"receive_batch": found["receive_batch"]})
        yield Row(f"{shape}: less than receive_batch", "×", ratios(found["receive_batch"], found["ours"]))


BENCH = Bench(
    "reader",
    measure,
    compared_with="receive_batch of azure-eventhub, which makes no Arrow",
    short={"shapes": ["1 KB"], "events": 2_000, "runs": 1},
    full={"shapes": [*SHAPES], "events": 30_000, "runs": 5},
    bars={f"{shape}: less than receive_batch": Bar("least", 15.0 if shape == "1 KB" else 10.0) for shape in SHAPES},
)
