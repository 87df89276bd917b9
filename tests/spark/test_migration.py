"""A Spark query takes over from consumers of the Azure SDK and from the Scala connector, and they from it: every event
is processed exactly once."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaos.storage.azurite import ACCOUNT, KEY, make_container
from spark_ehbalance.emulator import Emulator
from tests.azure_storage.consumers import Event, read_with_sdk
from tests.cli.command import Command, kept
from tests.source.scala_folders import begin_at, scala_folder

pytestmark = pytest.mark.spark

HUB, PARTITIONS = "few", 4


def read_with_spark(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> list[Event]:
    """All events that are there for a query, which ends in good order."""
    rows: list[Event] = []

    def take(frame: DataFrame, _: int) -> None:
        rows.extend((row.partition, row.sequenceNumber) for row in frame.collect())

    writer = spark.readStream.format("ehbalance").options(**options).load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return rows


def test_every_event_is_processed_once_in_both_directions(
    spark: SparkSession,
    hub: Emulator,
    shared_options: dict[str, str],
    storage: str,
    ehbalance: Command,
    tmp_path: Path,
) -> None:
    container, secret = uuid.uuid4().hex, tmp_path / "secret"
    make_container(storage, container)
    secret.write_text(KEY)
    hub.add_hub(HUB, PARTITIONS)
    connection = hub.connection_string(HUB)
    options = shared_options | {"connectionString": connection}
    table, address = options["leaseTable"], f"{storage}/{ACCOUNT}/{container}"
    given = (table, *kept(connection, tmp_path), "--storage-option", f"account_key=file:{secret}")
    named = ("--blob-namespace", f"localhost:{hub.port}")  # as the SDK's consumer calls its blobs
    processed = Counter[Event]()

    def arrive(count: int, partitions: int = PARTITIONS) -> None:
        for partition in range(partitions):
            hub.append(HUB, partition, [b"event"] * count)

    def sdk(starting_position: str = "-1", **most: int) -> None:
        wanted = {partition[1:]: count for partition, count in most.items()}
        read = read_with_sdk(connection, HUB, storage, container, wanted, starting_position=starting_position)
        processed.update(read)

    def query() -> None:
        processed.update(read_with_spark(spark, options, tmp_path / "checkpoint"))

    def move(command: str, *more: str) -> None:
        done = ehbalance(command, *given, *more)
        assert done.code == 0, done.err

    arrive(30, PARTITIONS - 1)
    sdk(p0=10, p1=30, p2=1)
    move("import-checkpoints", "--from-blobs", address, *named)
    query()  # owns the last partition too, of which there is nothing to read
    assert len(processed) == (PARTITIONS - 1) * 30
    arrive(20)
    # The SDK's consumer does not always remove itself when it is closed.
    move("export-checkpoints", "--to-blobs", address, *named, "--force")
    sdk("@latest", p0=20, p1=1, p3=4)  # without a checkpoint it would skip events
    move("import-checkpoints", "--from-blobs", address, *named)
    arrive(5)
    query()
    ends = {0: 55, 1: 55, 2: 55, 3: 25}
    assert processed == Counter((str(p), number) for p, end in ends.items() for number in range(end))


def test_every_event_is_processed_once_between_the_scala_connector_and_spark(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], ehbalance: Command, tmp_path: Path
) -> None:
    """The connector does not run on Spark 4: what it would process is counted from the numbers in its folders."""
    hub.add_hub(HUB, PARTITIONS)
    connection = hub.connection_string(HUB)
    options = shared_options | {"connectionString": connection}
    table, given = options["leaseTable"], kept(connection, tmp_path)
    processed = Counter[Event]()

    def arrive(count: int) -> None:
        for partition in range(PARTITIONS):
            hub.append(HUB, partition, [b"event"] * count)

    def connector(first: Mapping[int, int], next: Mapping[int, int]) -> None:
        processed.update((str(p), number) for p in first for number in range(first[p], next[p]))

    def import_and_read(folder: Path) -> None:
        done = ehbalance("import-checkpoints", table, *given, "--from-spark", folder)
        assert done.code == 0, done.err
        processed.update(read_with_spark(spark, options, tmp_path / "checkpoint"))

    arrive(30)
    # Its first batch is not finished, so that it begins again where an earlier query, which is counted, has ended.
    ended = {0: 10, 1: 30, 2: 1, 3: 0}
    connector(dict.fromkeys(ended, 0), ended)
    folder = scala_folder(tmp_path / "first", {HUB: {0: 20, 1: 30, 2: 20, 3: 20}}, unfinished=1)
    begin_at(folder, {HUB: ended})
    import_and_read(folder)
    assert len(processed) == PARTITIONS * 30

    arrive(20)
    done = ehbalance("export-checkpoints", table, "--starting-positions", "--event-hub-name", HUB)
    starts = {json.loads(name)["partitionId"]: at["seqNo"] for name, at in json.loads(done.out).items()}
    ended = {0: 50, 1: 31, 2: 30, 3: 34}
    connector(starts, ended)
    folder = scala_folder(tmp_path / "second", {HUB: {0: 40, 1: 30, 2: 30, 3: 31}}, {HUB: ended})
    begin_at(folder, {HUB: starts})
    import_and_read(folder)
    assert processed == Counter((str(p), number) for p in range(PARTITIONS) for number in range(50))


def test_a_stream_with_the_configuration_of_a_scala_job(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    """As the connector's documentation for PySpark writes it, but for the encryption; alone, and with a lease table."""
    hub.add_hub(HUB, PARTITIONS)
    for partition in range(PARTITIONS):
        hub.append(HUB, partition, [b"event"] * 4)
    key = json.dumps({"ehName": HUB, "partitionId": 2})
    start = {"offset": "-1", "seqNo": -1, "enqueuedTime": None, "isInclusive": True}
    configuration = {
        "eventhubs.connectionString": hub.connection_string(HUB),
        "eventhubs.consumerGroup": "$Default",
        "eventhubs.startingPosition": json.dumps(start),
        "eventhubs.startingPositions": json.dumps({key: {**start, "offset": None, "seqNo": 3}}),
        "maxEventsPerTrigger": "5",
        "eventhubs.receiverTimeout": "PT1M",
        "eventhubs.prefetchCount": "500",
        "eventhubs.useExclusiveReceiver": "true",
    }
    wanted = [(str(p), n) for p in range(PARTITIONS) for n in range(4) if p != 2 or n == 3]
    assert sorted(read_with_spark(spark, configuration, tmp_path / "alone")) == wanted
    table = {"leaseTable": shared_options["leaseTable"]}
    assert sorted(read_with_spark(spark, configuration | table, tmp_path / "shared")) == wanted
