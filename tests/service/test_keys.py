"""Partitions that the service assigns to keys, as a report; the way of sending must not matter."""

from __future__ import annotations

import json
import string
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from azure.eventhub import EventData

from spark_ehbalance.emulator.partition_keys import partition_for_key
from spark_ehbalance.eventhub.metadata import PartitionState
from tests.service.hub import Hub
from tests.service.test_reading import read
from tests.waiting import wait_until

#: Various keys; the partitions of `test_partition_a` to `_f` are known from another namespace.
KEYS = [
    *(f"test_partition_{letter}" for letter in string.ascii_lowercase),
    *(f"device-{number}" for number in range(60)),
    *(f"DEVICE-{number}" for number in range(10)),
    *map(str, range(40)),
    *(str(uuid.UUID(int=number * 0x9E3779B97F4A7C15 << 40)) for number in range(40)),
    *(f"plant {number}/line {number % 7}" for number in range(15)),
    *(f"größe-{number}" for number in range(10)),
    *(f"鍵{number}" for number in range(5)),
    *("x" * length for length in (1, 11, 12, 13, 24, 25, 64, 127, 128)),
]


def test_key_has_the_same_partition_for_all_ways_of_sending(
    hub: Hub, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    before = hub.states()
    with hub.producer() as producer:
        for key in KEYS:
            producer.send_event(EventData(b"single"), partition_key=key)
            producer.send_batch([EventData(b"batch"), EventData(b"batch")], partition_key=key)
    wait_until(lambda: _new(hub, before) >= 3 * len(KEYS), "the hub knows what was sent")
    found, counts = defaultdict[str, set[str]](set), Counter[str]()
    for partition, state in hub.states().items():
        if state.end > before[partition].end:
            for key in read(hub, partition, range(before[partition].end, state.end)).column("partitionKey").to_pylist():
                found[key].add(partition)
                counts[key] += 1
    assert counts == dict.fromkeys(KEYS, 3), "every event keeps its key"
    table = {key: sorted(found[key]) for key in KEYS}
    record_property("partitions of keys", json.dumps(table))
    if hub.is_real:
        as_emulated = [key for key in KEYS if table[key] == [str(partition_for_key(key, len(before)))]]
        with capsys.disabled():
            print(f"\n{len(as_emulated)} of {len(KEYS)} keys are in the emulator's partition, of {len(before)}:")
            print(json.dumps(table, ensure_ascii=False))
    assert not {key: partitions for key, partitions in table.items() if len(partitions) > 1}
    assert len(KEYS) == len(set(KEYS)) >= 200


def _new(hub: Hub, before: dict[str, PartitionState]) -> int:
    return sum(state.end - before[partition].end for partition, state in hub.states().items())
