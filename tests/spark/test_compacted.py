"""A query with real Spark over a compacted event hub: nothing of what is left is lost, and nothing is waited for."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB
from tests.spark.test_single_query import Rows, rows, run_available

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


def test_events_are_compacted_in_a_batch_and_between_batches(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    options = {**shared_options, "compacted": "true", "receiverTimeout": f"{RECEIVER_TIMEOUT} s"}
    read: Rows = []
    left: list[dict[int, set[int]]] = []

    def process(frame: DataFrame, batch: int) -> None:
        if not left:  # the batch is planned, and not read yet
            send(hub, REPLACED, 7)
            left.append(compact(hub))
            assert rows(frame), "there are events in it"
        read.extend(rows(frame))

    send(hub, EMPTIED, 10), send(hub, EMPTIED, 3, tombstones=True), send(hub, REPLACED, 10)
    began = time.monotonic()
    for _ in range(2):  # the first run ends where the hub ended when it began
        run_available(spark, options, tmp_path, process=process)
    assert left == [{EMPTIED: {8, 9}, REPLACED: {12, 13, 14, 15, 16}}]

    send(hub, EMPTIED, 1, tombstones=True), send(hub, REPLACED, 20)
    left.append(compact(hub))
    assert left[1] == {EMPTIED: {9}, REPLACED: set(range(32, 37))}
    left.append({partition: send(hub, partition, 5) for partition in (EMPTIED, REPLACED)})
    run_available(spark, options, tmp_path, process=process)
    assert time.monotonic() - began < RECEIVER_TIMEOUT
    assert Counter(read) == Counter({(str(p), number) for each in left for p in each for number in each[p]})
