"""The shapes of events with which readers are measured, and how a hub is filled with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from azure.eventhub import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage

from bench.common import HUB, Emulator

#: Appends a number of events to a partition.
Fill = Callable[[Emulator, str, int], None]


def _plain(size: int, properties: Callable[[int], dict[str, Any]] | None = None) -> Fill:
    def fill(server: Emulator, partition: str, events: int) -> None:
        body = os.urandom(size)
        if properties is None:
            server.fill(partition, body, events)
        else:
            server.control.append(HUB, partition, [body] * events, [properties(n) for n in range(events)])

    return fill


def _keyed(server: Emulator, partition: str, events: int) -> None:
    body = os.urandom(1024)
    for start in range(0, events, 100):
        server.control.append(HUB, partition, [body] * min(100, events - start), None, f"key {start // 100 % 2000}")


def _unexpected(server: Emulator, partition: str, events: int) -> None:
    """No two alike: a value as body, and an annotation and a property with a name of their own."""
    with EventHubProducerClient.from_connection_string(server.address) as client:
        for start in range(0, events, 500):  # a batch has at most 1 MB
            batch = [
                AmqpAnnotatedMessage(
                    value_body="x" * 1000,
                    annotations={f"x-{n}": n},
                    application_properties={f"p{n}": n},
                )
                for n in range(start, min(start + 500, events))
            ]
            client.send_batch(batch, partition_id=partition)  # type: ignore[arg-type]


SHAPES: dict[str, Fill] = {
    "1 KB": _plain(1024),
    "100 B": _plain(100),
    "64 KB": _plain(64 * 1024),
    "1 KB, 2 properties": _plain(1024, lambda n: {"device": "thermometer-17", "unit": "°C"}),
    "1 KB, 2 properties, one unique": _plain(1024, lambda n: {"device": "thermometer-17", "id": f"{n:08d}"}),
    "1 KB, partition key": _keyed,
    "1 KB, no two alike": _unexpected,
}

#: Some shapes have this many times fewer events: the emulator keeps them in memory, or the client sends them slowly.
FEWER = {"64 KB": 20, "1 KB, no two alike": 5}
