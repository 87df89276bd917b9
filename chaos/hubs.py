"""Reads all events in a hub with Azure's own client, and finds the differences between a hub and its copy."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from azure.eventhub import EventData, EventHubConsumerClient

from chaos.processes import wait_for
from spark_ehbalance.emulator import Emulator

#: (Key, partition) → the body and the properties, with their types, of each event, in order.
Events = Mapping[tuple[str, str], list[tuple[object, ...]]]


def event_counts(emulator: Emulator, hub: str) -> list[int]:
    """The number of events in each partition."""
    found = list[int]()
    with contextlib.suppress(ValueError):  # there are no more partitions
        while True:
            found.append(emulator.partition_state(hub, len(found)).next_sequence_number)
    return found


def read_hub(emulator: Emulator, hub: str) -> Events:
    """All events in the hub. Raises `TimeoutError`."""
    found, total = defaultdict[tuple[str, str], list[tuple[object, ...]]](list), sum(event_counts(emulator, hub))

    def add(context: Any, events: list[EventData]) -> None:
        for event in events:
            properties = sorted((str(name), repr(value)) for name, value in (event.properties or {}).items())
            key = (event.partition_key or b"").decode()
            found[key, context.partition_id].append((event.body_as_str(), *properties))

    client = EventHubConsumerClient.from_connection_string(
        emulator.connection_string(hub), "$Default", load_balancing_interval=0.5, socket_timeout=0.05
    )
    how = {"starting_position": "-1", "max_batch_size": 1000, "max_wait_time": 1}
    thread = threading.Thread(target=client.receive_batch, args=(add,), kwargs=how, daemon=True)
    with client:
        thread.start()
        wait_for(lambda: sum(map(len, found.values())) >= total, f"the events of {hub} are read", 120)
    thread.join()
    return found


def copy_differences(sent: Events, found: Events) -> tuple[int, list[str]]:
    """The number of repeated events, and descriptions of all other differences."""
    partitions = Counter(key for key, _ in found)
    wrong = [f"{key} is in {count} partitions" for key, count in partitions.items() if count > 1]
    by_key = {key: [*dict.fromkeys(events)] for (key, _), events in found.items()}  # the first copy of each event
    for (key, _), events in sent.items():
        if by_key.get(key) != events:
            missing = Counter(events) - Counter(by_key.get(key, []))
            what = f"{missing.total()} events are missing" if missing else "events are too many, or not in order"
            wrong.append(f"key {key}: {what}")
    return sum(len(events) - len({*events}) for events in found.values()), wrong
