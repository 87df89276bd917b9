"""What several of these tests need: a hub, options for it, and ways to look at what happened."""

from __future__ import annotations

from typing import Any

from azure.eventhub import EventData

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.receiver import Receiver
from spark_ehbalance.options import Options, stream_options
from tests.waiting import wait_until

HUB = "hub"


def hub_options(emulator: Emulator, **raw: object) -> Options:
    """The options of a stream that reads `HUB`."""
    return stream_options({"connectionString": emulator.connection_string(HUB), **{k: str(v) for k, v in raw.items()}})


def body_of(event: EventData) -> bytes:
    """The body of an event that was sent as data."""
    body: Any = event.body
    return b"".join(body)


def receive(receiver: Receiver, count: int, most: int = 100) -> list[EventData]:
    """At least `count` events, as soon as they have come."""
    events: list[EventData] = []

    def enough() -> bool:
        events.extend(receiver.receive(most, 0.1))
        return len(events) >= count

    wait_until(enough, f"{count} events have come")
    return events
