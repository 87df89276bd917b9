"""A query that reads with one lease table twice, and what is no such query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined]

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

Load = Callable[[], DataFrame]


def join(load: Load) -> DataFrame:
    """Spark makes two sources of it, because both sides have a column of the source as it is."""
    frame = load()
    return frame.alias("left").join(frame.alias("right"), "body")


def union(load: Load) -> DataFrame:
    return load().union(load())


def halves(load: Load) -> DataFrame:
    """Of one source."""
    frame = load()
    return frame.where("body < 'event 4'").union(frame.where("body >= 'event 4'"))


Start = Callable[[dict[str, str], Callable[[Load], DataFrame]], tuple[StreamingQuery, list[str]]]

EVENTS = [f"event {partition}" for partition in range(8)]


@pytest.fixture
def start(spark: SparkSession, hub: Emulator, tmp_path: Path) -> Iterator[Start]:
    """Starts a query of one or more streams with these options; returns it and what it has written. The hub has an
    event in each partition."""
    started: list[StreamingQuery] = []
    for partition, event in enumerate(EVENTS):
        hub.append(HUB, str(partition), [event.encode()])

    def make(options: dict[str, str], of: Callable[[Load], DataFrame]) -> tuple[StreamingQuery, list[str]]:
        def load() -> DataFrame:
            events = spark.readStream.format("ehbalance").options(**options).load()
            return events.selectExpr("partition", "string(body) body")

        written: list[str] = []

        def write(frame: DataFrame, batch: int) -> None:
            frame.count()  # so that each batch is read twice
            written.extend(row["body"] for row in frame.collect())

        writer = of(load).writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append(writer.start())
        return started[-1], written

    yield make
    for query in started:
        query.stop()


@pytest.mark.parametrize(("how", "position"), [(union, "earliest"), (join, "latest")])
def test_two_sources_with_one_lease_table_are_an_error_before_anything_is_written(
    how: Callable[[Load], DataFrame], position: str, start: Start, shared_options: dict[str, str]
) -> None:
    """Without `register`, and also where there is nothing to read yet."""
    query, written = start({**shared_options, "startingPosition": position}, how)
    with pytest.raises(
        StreamingQueryException, match=r"OptionError: leaseTable=.*: this query has two sources with it"
    ):
        query.awaitTermination(120)
    assert written == []
    with DeltaStore(shared_options["leaseTable"]) as store:
        read = [each.checkpoint.next for each in store.read().leases.values() if each.checkpoint is not None]
    assert set(read) <= {0 if position == "earliest" else 1}, "nothing counts as read"


def test_one_source_that_is_read_twice_works(start: Start, shared_options: dict[str, str]) -> None:
    query, written = start(shared_options, halves)
    wait_until(lambda: sorted(written) == EVENTS or query.exception(), "each event is there")
    assert sorted(written) == EVENTS
