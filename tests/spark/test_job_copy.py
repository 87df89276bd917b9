"""copy_hub: copies are identical to the originals, including the types of properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.eventhub import EventData
from pyspark.sql import SparkSession

from jobs.copy_hub import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs.copy_hub import Settings, start
from tests.emulator.clients import producer
from tests.spark.conftest import HUB

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


def test_keys_and_typed_properties_are_kept(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    hub.add_hub("copy", 2)
    sink = {"connectionString": hub.connection_string("copy")}
    typed = {"text": "5", "number": 5, "half": 0.5, "yes": True, "bytes": b"\xff5"}
    hub.append(HUB, "0", [b"a", b"b"], [typed, {}], partition_key="key")
    hub.append(HUB, "1", [b"", b"\xff"])
    settings = Settings(
        checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True}, source=options, sink=sink
    )
    assert start(spark, settings, rows).awaitTermination(120)

    def events_in(which: dict[str, str]) -> list[tuple[bytes, str | None, dict[str, str]]]:
        found = spark.read.format("ehbalance").options(**which, jsonProperties="true").load().collect()
        return sorted((bytes(row.body), row.partitionKey, row.properties) for row in found)

    copied = events_in(sink)
    assert copied == events_in({"connectionString": options["connectionString"]})
    assert copied[1][1:] == ("key", {"text": '"5"', "number": "5", "half": "0.5", "yes": "true", "bytes": "[-1,53]"})


def test_system_properties_are_copied_and_rejected_events_are_stored_once(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    hub.add_hub("copy", 2)
    event = EventData(b"with all")
    event.content_type, event.message_id, event.correlation_id = "application/json", "m-7", "c-7"
    with producer(hub.connection_string(HUB)) as client:
        client.send_event(event, partition_id="0")
    hub.append(HUB, "0", [b"key too long"], partition_key="k" * 129)
    hub.append(HUB, "0", [b"after it"])
    settings = Settings(
        checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True}, source=options,
        sink={"connectionString": hub.connection_string("copy")}, unsendable=str(tmp_path / "unsendable"),
    )  # fmt: skip
    assert start(spark, settings, rows).awaitTermination(120)
    found = spark.read.format("ehbalance").options(**settings.sink).load().orderBy("body").collect()
    assert [bytes(row.body) for row in found] == [b"after it", b"with all"]
    expected = {"content-type": "application/json", "message-id": "m-7", "correlation-id": "c-7"}
    assert expected.items() <= found[1].systemProperties.items()
    (kept,) = spark.read.format("delta").load(settings.unsendable).collect()
    assert (bytes(kept.body), kept.partition, kept.sequenceNumber) == (b"key too long", "0", 1)
    assert kept.reason == "its partition key has 129 characters; the maximum is 128"
