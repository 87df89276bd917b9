"""A query that reads with one lease table twice, and what is no such query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Load = Callable[[], DataFrame]

#: How a query may read a stream twice.
TWICE: dict[str, Callable[[Load], DataFrame]] = {
    "a join of two": lambda load: load().join(load(), "body"),
    "a join with itself": lambda load: _with_itself(load()),
    "a union of two": lambda load: load().union(load()),
}


def _with_itself(frame: DataFrame) -> DataFrame:
    """Spark makes two sources of it, because both sides have a column of the source as it is."""
    return frame.alias("left").join(frame.alias("right"), "body")


Start = Callable[[dict[str, str], str, Callable[[Load], DataFrame]], tuple[StreamingQuery, list[str]]]

EVENTS = [f"event {partition}" for partition in range(8)]


@pytest.fixture
def start(spark: SparkSession, hub: Emulator, tmp_path: Path) -> Iterator[Start]:
    """Starts a query of one or more streams with these options; returns it and what it has written. The hub has an
    event in each partition."""
    started: list[StreamingQuery] = []
    for partition, event in enumerate(EVENTS):
        hub.append(HUB, str(partition), [event.encode()])

    def make(options: dict[str, str], name: str, of: Callable[[Load], DataFrame]) -> tuple[StreamingQuery, list[str]]:
        def load() -> DataFrame:
            return (
                spark.readStream.format("ehbalance")
                .options(**options)
                .load()
                .selectExpr("partition", "string(body) body")
            )

        written: list[str] = []

        def write(frame: DataFrame, batch: int) -> None:
            frame.count()  # so that each batch is read twice
            written.extend(row["body"] for row in frame.collect())

        writer = of(load).writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / name))
        started.append(writer.start())
        return started[-1], written

    yield make
    for query in started:
        query.stop()


@pytest.mark.parametrize("position", ["earliest", "latest"])
@pytest.mark.parametrize("how", TWICE)
def test_two_sources_with_one_lease_table_are_an_error_before_anything_is_written(
    how: str,
    position: str,
    start: Start,
    shared_options: dict[str, str],
) -> None:
    """Without `register`, and also where there is nothing to read yet."""
    query, written = start({**shared_options, "startingPosition": position}, "checkpoint", TWICE[how])
    with pytest.raises(
        StreamingQueryException, match=r"OptionError: leaseTable=.*: this query has two sources with it"
    ):
        query.awaitTermination(120)
    assert written == []
    with DeltaStore(shared_options["leaseTable"]) as store:
        read = [each.checkpoint.next for each in store.read().leases.values() if each.checkpoint is not None]
    assert set(read) <= {0 if position == "earliest" else 1}, "nothing counts as read"


@pytest.mark.parametrize("how", ["a join of two", "a join with itself"])
def test_a_join_works_without_a_lease_table(how: str, start: Start, options: dict[str, str]) -> None:
    query, written = start(options, "checkpoint", TWICE[how])
    wait_until(lambda: sorted(written) == EVENTS or query.exception(), "each event has found itself")
    assert sorted(written) == EVENTS


def test_a_union_of_one_load_is_one_source(start: Start, shared_options: dict[str, str]) -> None:
    def halves(load: Load) -> DataFrame:
        frame = load()
        return frame.where("body < 'event 4'").union(frame.where("body >= 'event 4'"))

    query, written = start(shared_options, "checkpoint", halves)
    wait_until(lambda: sorted(written) == EVENTS or query.exception(), "each event is there")
    assert sorted(written) == EVENTS


def test_two_queries_of_one_session_share(
    hub: Emulator,
    start: Start,
    shared_options: dict[str, str],
    owners: Callable[[], list[str | None]],
) -> None:
    """Also once one of them has been started again."""
    read: list[list[str]] = []
    running: dict[str, StreamingQuery] = {}
    expected = set(EVENTS)

    def begin(name: str) -> None:
        running[name], written = start(shared_options, name, lambda load: load())
        read.append(written)

    def expect_all_read() -> None:
        wait_until(lambda: len({*owners()}) == 2 or failed(), "they share")
        for partition in range(8):
            event = f"event {len(expected)}"
            hub.append(HUB, str(partition), [event.encode()])
            expected.add(event)
        wait_until(lambda: expected <= {event for each in read for event in each} or failed(), "all is read")
        assert not failed()

    def failed() -> list[object]:
        return [each.exception() for each in running.values() if each.exception()]

    begin("first")
    begin("second")
    expect_all_read()
    running["second"].stop()
    begin("second")
    expect_all_read()
