"""Queries whose two sources use the same lease table, and similar queries with one source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.spark.conftest import HUB
from tests.spark.test_single_query import run_frame

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

Load = Callable[[], DataFrame]


def join(load: Load) -> DataFrame:
    """Spark creates two sources because both sides use a column of the source unchanged."""
    frame = load()
    return frame.alias("left").join(frame.alias("right"), "body")


def union(load: Load) -> DataFrame:
    return load().union(load())


def halves(load: Load) -> DataFrame:
    """A union that reads one source twice."""
    frame = load()
    return frame.where("body < 'event 4'").union(frame.where("body >= 'event 4'"))


EVENTS = [f"event {partition}" for partition in range(8)]

Run = Callable[[dict[str, str], Callable[[Load], DataFrame]], None]


@pytest.fixture
def written() -> list[str]:
    return []


@pytest.fixture
def run(spark: SparkSession, hub: Emulator, tmp_path: Path, written: list[str]) -> Run:
    """Runs a query of one or more streams with these options until it ends. Every partition contains an event."""
    for partition, event in enumerate(EVENTS):
        hub.append(HUB, str(partition), [event.encode()])

    def make(options: dict[str, str], frame: Callable[[Load], DataFrame]) -> None:
        def load() -> DataFrame:
            events = spark.readStream.format("ehbalance").options(**options).load()
            return events.selectExpr("partition", "string(body) body")

        def write(rows: DataFrame, batch: int) -> None:
            rows.count()  # so every batch is read twice
            written.extend(row["body"] for row in rows.collect())

        run_frame(frame(load), tmp_path, process=write)

    return make


@pytest.mark.parametrize(("how", "position"), [(union, "earliest"), (join, "latest")])
def test_two_sources_with_the_same_lease_table_fail_before_anything_is_written(
    how: Callable[[Load], DataFrame], position: str, run: Run, written: list[str], shared_options: dict[str, str]
) -> None:
    """Even without `register`, and even if there are no events to read yet."""
    two = r"OptionError: \[EHB_TWO_SOURCES\] .*leaseTable="
    with pytest.raises(StreamingQueryException, match=two):
        run({**shared_options, "startingPosition": position}, how)
    assert written == []
    with DeltaStore(shared_options["leaseTable"]) as store:
        read = [lease.checkpoint.next for lease in store.read().leases.values() if lease.checkpoint is not None]
    assert set(read) <= {0 if position == "earliest" else 1}, "nothing counts as read"


def test_one_source_can_be_read_twice(run: Run, written: list[str], shared_options: dict[str, str]) -> None:
    run(shared_options, halves)
    assert sorted(written) == EVENTS
