"""A query with real Spark over a compacted event hub: nothing of what is left is lost, and nothing is waited for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB
from tests.spark.query_process import Query, QueryProcess
from tests.spark.test_seek import in_flight
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

#: The newest events of one become tombstones, which are removed; those of the other are replaced.
EMPTIED, REPLACED = 0, 1

KEYS = 5

RECEIVER_TIMEOUT = 120


def send(hub: Emulator, partition: int, count: int, *, tombstones: bool = False) -> set[int]:
    """Events of each key in turn; returns their sequence numbers."""
    first = hub.partition_state(HUB, partition).next_sequence_number
    for number in range(first, first + count):
        hub.append_from_kafka(HUB, partition, None if tombstones else b"%d" % number, b"key %d" % (number % KEYS))
    return set(range(first, first + count))


def compact(hub: Emulator) -> dict[int, set[int]]:
    """Compact both partitions, without the tombstones; returns what is left of each."""
    return {p: set(hub.compact_keys(HUB, p, keep_tombstones=False)) for p in (EMPTIED, REPLACED)}


def expect(query: Query, written: dict[int, set[int]]) -> None:
    """Wait until exactly these events are in the target, each once, for less than `receiverTimeout`."""
    expected = Counter((str(p), number) for p, numbers in written.items() for number in numbers)
    wait_until(lambda: len(query.rows()) >= len(expected), f"{expected} are written", timeout=RECEIVER_TIMEOUT / 2)
    assert Counter(query.rows()) == expected


def test_events_are_compacted_in_a_batch_and_between_batches(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path, pair: list[QueryProcess]
) -> None:
    options = {**shared_options, "receiverTimeout": f"{RECEIVER_TIMEOUT} s"}
    hold, checkpoint = tmp_path / "hold", tmp_path / "checkpoint"
    send(hub, EMPTIED, 10), send(hub, EMPTIED, 3, tombstones=True), send(hub, REPLACED, 10)
    hold.touch()
    query = pair[0].start(options, tmp_path, hold=hold)
    wait_until(lambda: in_flight(checkpoint), "a batch is in flight")
    send(hub, REPLACED, 7)
    written = compact(hub)
    assert written == {EMPTIED: {8, 9}, REPLACED: {12, 13, 14, 15, 16}}
    hold.unlink()
    expect(query, written)
    wait_until(lambda: not in_flight(checkpoint), "the last batch is finished")
    query.stop()

    send(hub, EMPTIED, 1, tombstones=True), send(hub, REPLACED, 20)
    left = compact(hub)
    assert left == {EMPTIED: {9}, REPLACED: set(range(32, 37))}
    query = pair[0].start(options, tmp_path, hold=hold)
    written = {p: written[p] | left[p] for p in left}
    expect(query, written)
    for partition in (EMPTIED, REPLACED):
        written[partition] |= send(hub, partition, 5)
    expect(query, written)
    query.stop()
