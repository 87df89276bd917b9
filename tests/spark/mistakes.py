"""Mistakes of users, each as a user makes it, with the line that must tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.group import Group
from tests.spark.conftest import HUB

#: Seconds until a query that does not fail counts as one that waits for a minute. It is no measurement: each takes one
#: to three, and more on a busy machine.
GUARD = 55


@dataclass(frozen=True)
class Place:
    """Where mistakes are made: options that are right, and a folder."""

    spark: SparkSession
    right: dict[str, str]
    folder: Path

    def options(self, **wrong: str) -> dict[str, str]:
        return {**self.right, **{name.replace("__", "."): value for name, value in wrong.items()}}

    def start(self, frame: DataFrame, checkpoint: str = "checkpoint") -> None:
        """Run the stream `frame` until it has read all that there is."""
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.folder / checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(GUARD), f"the query has not failed within {GUARD} s"
        finally:
            query.stop()

    def stream(self, **wrong: str) -> None:
        self.start(self.spark.readStream.format("ehbalance").options(**self.options(**wrong)).load())

    def shared(self, **wrong: str) -> None:
        self.stream(**{"leaseTable": str(self.folder / "leases"), **wrong})

    def batch(self, **wrong: str) -> None:
        self.spark.read.format("ehbalance").options(**self.options(**wrong)).load().count()

    def connected(self, pattern: str, text: str) -> None:
        """A stream with another connection string."""
        self.stream(connectionString=re.sub(pattern, text, self.right["connectionString"]))


def _file(at: Place) -> None:
    (at.folder / "file").write_text("no table")
    at.shared(leaseTable=str(at.folder / "file"))


def _other_group(at: Place) -> None:
    DeltaStore(str(at.folder / "others")).create(Group("other.servicebus.windows.net", "other", "$default"))
    at.shared(leaseTable=str(at.folder / "others"))


def _load_path_in_batch(at: Place) -> None:
    at.spark.read.format("ehbalance").options(**at.right).load("/leases").count()


def _schema(at: Place) -> None:
    at.start(at.spark.readStream.format("ehbalance").options(**at.right).schema("body int").load())


def _write_stream(at: Place) -> None:
    frame = at.spark.readStream.format("ehbalance").options(**at.right).load()
    writer = frame.writeStream.format("ehbalance").options(**at.right)
    query = writer.option("checkpointLocation", str(at.folder / "written")).start()
    try:
        assert query.awaitTermination(GUARD)
    finally:
        query.stop()


def _write(at: Place) -> None:
    at.spark.sql("select 'event' as body").write.format("ehbalance").options(**at.right).mode("append").save()


def _create_table(at: Place) -> None:
    string = at.right["connectionString"]
    at.spark.sql(f"CREATE TABLE mistaken USING ehbalance OPTIONS (connectionString '{string}')")


def _view(at: Place) -> None:
    string = at.right["connectionString"]
    at.spark.sql(f"CREATE TEMPORARY VIEW hub USING ehbalance OPTIONS (connectionString '{string}', leaseTable '/l')")
    at.spark.sql("SELECT count(*) FROM hub").collect()


def _foreign_checkpoint(at: Place) -> None:
    """A checkpoint that a query with Spark's source `rate` has left."""
    checkpoint = at.folder / "checkpoint"
    for name in ("offsets", "commits", "sources/0"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"6c1d5a7a-9dd3-4c84-b4bb-3bd97df4d3d9"}')
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (checkpoint / "offsets/0").write_text(f"v1\n{settings}\n7")
    (checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    at.stream()


#: Name → what the user does, and a pattern of our line: one for each place from which an error comes. Options by
#: themselves: `tests/source/test_options.py`.
MISTAKES: dict[str, tuple[Callable[[Place], None], str]] = {
    "misspelled option": (
        lambda at: at.stream(maxEventPerTrigger="5"),
        r"there is no option 'maxeventpertrigger': did you mean maxEventsPerTrigger\?",
    ),
    "stream option in a batch": (
        lambda at: at.batch(leaseTable="/leases"),
        r"spark\.read has no option leaseTable: it is for spark\.readStream",
    ),
    "closed port": (
        lambda at: at.connected("sb://[^;]*", "sb://localhost:1"),
        r"no connection could be made to localhost:1",
    ),
    "unknown consumer group": (lambda at: at.stream(consumerGroup="none"), r"consumer group 'none' does not exist"),
    "unknown consumer group, shared": (
        lambda at: at.shared(consumerGroup="none"),
        r"consumer group 'none' does not exist",
    ),
    "unknown consumer group in a batch": (
        lambda at: at.batch(consumerGroup="none"),
        r"consumer group 'none' does not exist",
    ),
    "end beyond the last event": (
        lambda at: at.batch(endingPosition='{"0": 500, "*": "latest"}'),
        r"partition 0: endingPosition means sequence number 500",
    ),
    "lease table of another group": (
        _other_group,
        r"belongs to other\.servicebus\.windows\.net/other/\$default, not to",
    ),
    "load(path) in a batch": (_load_path_in_batch, r"this source has no path, as in load\(PATH\)"),
    "unknown partition": (
        lambda at: at.stream(startingPosition='{"77": 3, "*": "latest"}'),
        r"a position is given for partition '77': the hub has 0, 1",
    ),
    "lease table is a file": (_file, r"lease table"),
    "schema": (_schema, r"\.schema\(\) has body int: allowed are body binary, .*"),
    "writeStream": (_write_stream, r"ehbalance only reads an event hub: to write into one use EventHubProducerClient"),
    "write": (_write, r"ehbalance only reads an event hub: to write into one use EventHubProducerClient"),
    "CREATE TABLE": (_create_table, r"ehbalance has no tables in a catalog.*use CREATE TEMPORARY VIEW"),
    "view with an option of a stream": (_view, r"spark\.read has no option leaseTable"),
    "checkpoint of another source": (_foreign_checkpoint, r"the query's checkpoint holds offsets of another source"),
}


def place(spark: SparkSession, emulator: Emulator, folder: Path) -> Place:
    return Place(spark, {"connectionString": emulator.connection_string(HUB), "startingPosition": "earliest"}, folder)
