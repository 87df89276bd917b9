"""Fixtures of the checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from matrix.checks.session import make_session
from spark_ehbalance.emulator import Emulator

HUB = "hub"
PARTITIONS = 4

Row = tuple[str, int]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = make_session()
    spark_ehbalance.register(session)
    yield session
    session.stop()


class Hub:
    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self.sent: list[Row] = []

    @property
    def connection_string(self) -> str:
        return self._emulator.connection_string(HUB)

    def send(self, each: int) -> list[Row]:
        """Send as many events to every partition. Returns all that were sent ever, in order."""
        for partition in map(str, range(PARTITIONS)):
            first = self._emulator.partition_state(HUB, partition).next_sequence_number
            self._emulator.append(HUB, partition, [b"event"] * each)
            self.sent += [(partition, number) for number in range(first, first + each)]
        self.sent.sort()
        return self.sent


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Emulator({HUB: PARTITIONS}) as emulator:
        yield Hub(emulator)


@pytest.fixture
def alone(hub: Hub) -> dict[str, str]:
    """Options of a query that reads the hub alone."""
    return {"connectionString": hub.connection_string, "startingPosition": "earliest"}


@pytest.fixture
def sharing(alone: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Options of queries that share the hub, with short times."""
    return {**alone, "leaseTable": str(tmp_path / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}


class Sink:
    """Keeps what the batches of one query have, by their number. `fails` is the number of one that fails."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.fails: int | None = None
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [(row.partition, row.sequenceNumber) for row in frame.select("partition", "sequenceNumber").collect()]
        if batch == self.fails:
            raise RuntimeError("the sink fails")
        with self._lock:
            self.batches[batch] = self.batches.get(batch, []) + sorted(rows)

    @property
    def rows(self) -> list[Row]:
        """All rows in order; what was written twice is there twice."""
        with self._lock:
            return sorted(row for rows in self.batches.values() for row in rows)


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Starts a query with these options, whose checkpoint has a name; without a trigger batch follows batch."""
    started: list[StreamingQuery] = []

    def make(options: dict[str, str], sink: Any, checkpoint: str = "checkpoint", **trigger: Any) -> StreamingQuery:
        writer = (
            spark.readStream.format("ehbalance")
            .options(**options)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
        )
        started.append((writer.trigger(**trigger) if trigger else writer).start())
        return started[-1]

    yield make
    for query in started:
        query.stop()
