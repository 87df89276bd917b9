"""What several of these tests need: a hub, options for it, and ways to look at what happened."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.message import Event
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.source import receivers
from spark_ehbalance.source.options import Options, stream_options
from tests.waiting import wait_until

HUB = "hub"


def hub_options(emulator: Emulator, **raw: object) -> Options:
    """The options of a stream that reads `HUB`."""
    return stream_options({"connectionString": emulator.connection_string(HUB), **{k: str(v) for k, v in raw.items()}})


def receive(receiver: Receiver, count: int, most: int = 100) -> pa.Table:
    """At least `count` rows, as soon as they have come."""
    batches: list[pa.RecordBatch] = []

    def enough() -> bool:
        batches.append(receiver.receive(most, 0.1))
        return sum(batch.num_rows for batch in batches) >= count

    wait_until(enough, f"{count} events have come")
    return pa.Table.from_batches(batches)


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where receivers are opened from now on; filled as they are."""
    starts: list[int] = []

    class Counted(Receiver):
        def __init__(self, source: PartitionAddress, start: int, **settings: object) -> None:
            starts.append(start)
            super().__init__(source, start, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(receivers, "Receiver", Counted)
    return starts


def append_encoded(emulator: Emulator, partition: str, *events: Event) -> None:
    """Keep events that no hub would take from a sender, in `HUB`."""
    broker = emulator._running()._broker

    async def append() -> None:
        broker.append(broker.hub(HUB), partition, events)

    emulator._wait_for(append())
