"""Mistakes of users, each as a user makes it, with the line that must tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pyarrow as pa
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

    def connected_by(self, way: dict[str, str]) -> None:
        """A stream with another way in."""
        self.start(self.spark.readStream.format("ehbalance").options(**way).load())

    def connected(self, pattern: str, text: str) -> None:
        """A stream with another connection string."""
        self.stream(connectionString=re.sub(pattern, text, self.right["connectionString"]))


def _other_delta_table(at: Place) -> None:
    deltalake.write_deltalake(str(at.folder / "flights"), pa.table({"flight": ["LH 400"]}))
    at.shared(leaseTable=str(at.folder / "flights"))


def _file(at: Place) -> None:
    (at.folder / "file").write_text("no table")
    at.shared(leaseTable=str(at.folder / "file"))


def _other_group(at: Place) -> None:
    DeltaStore(str(at.folder / "others")).create(Group("other.servicebus.windows.net", "other", "$default"))
    at.shared(leaseTable=str(at.folder / "others"))


def _load_path(at: Place) -> None:
    at.start(at.spark.readStream.format("ehbalance").options(**at.right).load("/leases"))


def _load_path_in_batch(at: Place) -> None:
    at.spark.read.format("ehbalance").options(**at.right).load("/leases").count()


def _schema(at: Place) -> None:
    at.start(at.spark.readStream.format("ehbalance").options(**at.right).schema("body string").load())


def _schema_in_batch(at: Place) -> None:
    at.spark.read.format("ehbalance").options(**at.right).schema("body string").load().count()


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


#: Name → what the user does, and a pattern of our line.
MISTAKES: dict[str, tuple[Callable[[Place], None], str]] = {
    "misspelled option": (
        lambda at: at.stream(maxEventPerTrigger="5"),
        r"there is no option 'maxeventpertrigger': did you mean maxEventsPerTrigger\?",
    ),
    "unknown option": (
        lambda at: at.stream(colour="red"),
        r"there is no option 'colour' for spark\.readStream: the nearest are .* and .*; docs/options\.md lists all",
    ),
    "batch option in a stream": (
        lambda at: at.stream(endingPosition="latest"),
        r"spark\.readStream has no option endingPosition: it is for spark\.read",
    ),
    "stream option in a batch": (
        lambda at: at.batch(leaseTable="/leases"),
        r"spark\.read has no option leaseTable: it is for spark\.readStream",
    ),
    "number": (lambda at: at.stream(prefetch="many"), r"option prefetch='many' is wrong: allowed is a whole number"),
    "duration": (
        lambda at: at.shared(leaseDuration="soon"),
        r"option leaseDuration='soon' is wrong: allowed is a length",
    ),
    "boolean": (
        lambda at: at.stream(failOnDataLoss="yes"),
        r"option failOnDataLoss='yes' is wrong: allowed is true or",
    ),
    "choice": (
        lambda at: at.shared(strategy="cooperativ"),
        r"option strategy='cooperativ' is wrong: .* \(did you mean cooperative\?\)",
    ),
    "time": (lambda at: at.stream(startingPosition="2026-13-01"), r"option startingPosition='2026-13-01' is wrong"),
    "JSON": (lambda at: at.stream(startingPosition='{"0": 3'), r"option startingPosition='\{\"0\": 3' is wrong"),
    "empty value": (lambda at: at.stream(consumerGroup=""), r"option consumerGroup='' is wrong"),
    "no connection": (
        lambda at: at.start(at.spark.readStream.format("ehbalance").option("eventHubName", HUB).load()),
        r"neither connectionString nor fullyQualifiedNamespace is set",
    ),
    "malformed connection string": (
        lambda at: at.stream(connectionString="Endpoint=sb:/hub"),
        r"option connectionString is wrong: allowed is Endpoint=sb://",
    ),
    "no hub": (
        lambda at: at.connected(";EntityPath=[^;]*", ""),
        r"eventHubName is not set, and connectionString has no EntityPath",
    ),
    "missing variable": (
        lambda at: at.stream(connectionString="env:NO_SUCH_VARIABLE"),
        r"option connectionString='env:NO_SUCH_VARIABLE' is wrong: the environment .* has no such variable",
    ),
    "wrong host": (
        lambda at: at.connected("sb://[^;]*(.*);UseDevelopmentEmulator=true", r"sb://nosuch.invalid/\1"),
        r"the name of nosuch\.invalid:5671 does not resolve",
    ),
    "an emulator elsewhere": (
        lambda at: at.connected("sb://[^;]*", "sb://nosuch.invalid/"),
        r"switches TLS off, and nosuch\.invalid is not on this machine: allowed are localhost",
    ),
    "closed port": (
        lambda at: at.connected("sb://[^;]*", "sb://localhost:1"),
        r"no connection could be made to localhost:1",
    ),
    "wrong key": (
        lambda at: at.connected("SharedAccessKey=[^;]*", "SharedAccessKey=d3Jvbmc="),
        r"refused the credentials .*\. Check the key or signature",
    ),
    "unknown hub": (
        lambda at: at.connected("EntityPath=[^;]*", "EntityPath=nohub"),
        r"event hub 'nohub' .* does not exist",
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
    "unknown partition": (
        lambda at: at.stream(startingPosition='{"77": 3, "*": "latest"}'),
        r"a position is given for partition '77': the hub has 0, 1",
    ),
    "start beyond the last event": (
        lambda at: at.stream(startingPosition='{"0": 500, "*": "latest"}'),
        r"option startingPosition is wrong: it is 500 for partition 0, whose last event is 0",
    ),
    "start beyond the last event in a batch": (
        lambda at: at.batch(startingPosition='{"0": 500, "*": "latest"}'),
        r"option startingPosition is wrong: it is 500 for partition 0, whose last event is 0",
    ),
    "unknown partition in a batch": (
        lambda at: at.batch(startingPosition='{"77": 3, "*": "latest"}'),
        r"a position is given for partition '77': the hub has 0, 1",
    ),
    "end beyond the last event": (
        lambda at: at.batch(endingPosition='{"0": 500, "*": "latest"}'),
        r"partition 0: endingPosition means sequence number 500",
    ),
    "lease table is a file": (_file, r"lease table"),
    "lease table on a mount": (
        lambda at: at.shared(leaseTable="/dbfs/leases"),
        r"option leaseTable='/dbfs/leases' is wrong",
    ),
    "lease table that cannot be made": (
        lambda at: at.shared(leaseTable="/proc/leases"),
        r"lease table at /proc/leases",
    ),
    "lease table of another group": (
        _other_group,
        r"belongs to other\.servicebus\.windows\.net/other/\$default, not to",
    ),
    "another Delta table": (_other_delta_table, r"flights"),
    "storage option with a secret": (
        lambda at: at.shared(leaseTable="az://leases/hub", storageOptions__account_key="c2VjcmV0"),
        r"option storageOptions\.account_key holds a secret",
    ),
    "secret in another option": (
        lambda at: at.stream(eventHubName=at.right["connectionString"]),
        r"option eventHubName holds what looks like a key",
    ),
    "ownerLevel with leaseTable": (
        lambda at: at.shared(ownerLevel="1"),
        r"ownerLevel cannot be set together with leaseT",
    ),
    "encrypted connection string of the Scala connector": (
        lambda at: at.connected_by({"eventhubs.connectionString": "q1Yv4f3o2bT0l3c8m9sYbYk0Y3J5cHRlZC1jb25uZQ=="}),
        r"eventhubs\.connectionString is wrong: allowed is the connection string itself, without EventHubsUtils",
    ),
    "option of the Scala connector": (
        lambda at: at.stream(eventhubs__threadPoolSize="4"),
        r"eventhubs\.threadPoolSize is an option of the Scala connector: leave it out",
    ),
    "load(path)": (_load_path, r"this source has no path, as in load\(PATH\)"),
    "load(path) in a batch": (_load_path_in_batch, r"this source has no path, as in load\(PATH\)"),
    "schema": (_schema, r"the columns are always body, .*: leave \.schema\(\) out"),
    "schema in a batch": (_schema_in_batch, r"the columns are always body, .*: leave \.schema\(\) out"),
    "writeStream": (_write_stream, r"ehbalance only reads an event hub: to write into one use EventHubProducerClient"),
    "write": (_write, r"ehbalance only reads an event hub: to write into one use EventHubProducerClient"),
    "CREATE TABLE": (_create_table, r"ehbalance has no tables in a catalog.*use CREATE TEMPORARY VIEW"),
    "view with an option of a stream": (_view, r"spark\.read has no option leaseTable"),
    "checkpoint of another source": (_foreign_checkpoint, r"the query's checkpoint holds offsets of another source"),
}


def place(spark: SparkSession, emulator: Emulator, folder: Path) -> Place:
    return Place(spark, {"connectionString": emulator.connection_string(HUB), "startingPosition": "earliest"}, folder)
