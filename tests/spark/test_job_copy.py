"""copy_hub: what is sent on is what was there, with the types of properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.copy_hub import rows
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs.copy_hub import Settings, start
from tests.spark.conftest import HUB

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


def test_keys_and_properties_with_their_types_are_kept(
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

    def held(which: dict[str, str]) -> list[tuple[bytes, str | None, dict[str, str]]]:
        found = spark.read.format("ehbalance").options(**which, jsonProperties="true").load().collect()
        return sorted((bytes(row.body), row.partitionKey, row.properties) for row in found)

    copied = held(sink)
    assert copied == held({"connectionString": options["connectionString"]})
    assert copied[1][1:] == ("key", {"text": '"5"', "number": "5", "half": "0.5", "yes": "true", "bytes": "[-1,53]"})
