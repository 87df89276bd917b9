"""A hub's partitions and their states, requested over one open connection."""

from __future__ import annotations

import threading
import time

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.wire.management import Management
from tests.query.support import HUB, hub_options

KEY = "theRightKey"


def fill(emulator: Emulator) -> None:
    """Partition 0 stays empty, 1 has 5 events, 2 had 5 and lost 3."""
    emulator.append(HUB, 1, [b"x"] * 5)
    emulator.append(HUB, 2, [b"x"] * 5)
    emulator.trim(HUB, 2, 3)


@pytest.mark.parametrize("begin", [0, 3, 5])
def test_empty_partition_is_empty_at_any_begin(
    metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    response = {
        b"begin_sequence_number": begin,
        b"last_enqueued_sequence_number": 4,
        b"last_enqueued_offset": b"99",
        b"last_enqueued_time_utc": 1_770_000_000_000,
        b"is_partition_empty": True,
    }
    monkeypatch.setattr(Management, "request", lambda *_: [response])
    state = metadata.partition_states(["0"])["0"]
    assert (state.begin, state.end, state.last_offset) == (5, 5, "99")


def test_dropped_connection_is_replaced_without_an_error(
    emulator: Emulator, metadata: HubMetadata, clients: list[Connection]
) -> None:
    for count in range(1, 6):
        metadata.partition_ids()
        emulator.drop_connections()
        emulator.append(HUB, 0, [b"x"])
        assert metadata.partition_states(["0"])["0"].end == count
        assert len(clients) == count + 1


def test_states_from_many_requests_belong_to_one_connection() -> None:
    with Emulator(geo_replicated=True) as emulator:
        emulator.add_hub(HUB, 4)
        for partition in range(4):
            emulator.append(HUB, partition, [b"x"] * 3)
        promotion = threading.Timer(0.5, emulator.promote, (HUB, 1))  # the second half is requested later
        with HubMetadata(hub_options(emulator).connection, "$Default", most_requests=2) as metadata:
            metadata.partition_ids()
            promotion.start()
            states = metadata.partition_states("0123")
        promotion.join()
    assert [state.end for state in states.values()] == [2, 2, 2, 2]


def test_connection_is_replaced_before_its_token_expires(
    metadata: HubMetadata, clients: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.partition_ids()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    metadata.partition_ids()
    assert len(clients) == 2


def test_recreated_hub_is_detected_over_an_open_connection(emulator: Emulator, metadata: HubMetadata) -> None:
    fill(emulator)
    assert metadata.partition_ids() == ("0", "1", "2")
    before = metadata.created_ms
    assert metadata.partition_states(["1"])["1"].end == 5
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 2)
    assert metadata.partition_ids() == ("0", "1")
    assert metadata.created_ms is not None
    assert before is not None
    assert metadata.created_ms > before
    assert metadata.partition_states(["1"])["1"] == PartitionState(0, 0, None, None)
