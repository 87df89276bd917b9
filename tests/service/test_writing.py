"""The sink's assumptions about the service: a key's partition, and that keys survive in batches to a partition."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from azure.eventhub import EventData

from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import WRITE_OPTIONS, write_options
from spark_ehbalance.eventhub.sending.writing import LinkPool, WriteTask
from tests.service.hub import Hub
from tests.service.test_reading import read
from tests.waiting import wait_until

KEYS = [f"device-{number}" for number in range(8)]

ROW = pa.schema([("body", pa.string()), ("key", pa.string())])


def grown(hub: Hub, send: Callable[[], object]) -> tuple[str, int]:
    """The partition that has one more event after `send`, and the event's sequence number."""
    before = hub.states()
    send()

    def more() -> list[tuple[str, int]]:
        return [(p, before[p].end) for p, state in hub.states().items() if state.end > before[p].end]

    wait_until(more, "the hub knows what was sent")
    (found,) = more()
    return found


def test_keys_match_the_services_partitions_and_stay_with_events(hub: Hub) -> None:
    options = write_options({name: text for name, text in hub.raw.items() if name in WRITE_OPTIONS})
    task = WriteTask(options, SinkColumns(0, key=1), LinkPool())
    with hub.producer() as producer:
        for key in KEYS:
            by_the_service, _ = grown(hub, lambda key=key: producer.send_event(EventData(b"a"), partition_key=key))  # type: ignore[misc]
            row = pa.RecordBatch.from_pylist([{"body": "b", "key": key}], ROW)
            partition, number = grown(hub, lambda row=row: task.write([row]))  # type: ignore[misc]
            assert partition == by_the_service, key
            found = read(hub, partition, range(number, number + 1))
            assert found.column("partitionKey").to_pylist() == [key]
