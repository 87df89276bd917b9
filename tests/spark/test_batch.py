"""`spark.read.format("ehbalance")`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.rows import SPARK_SCHEMA
from tests.query.poison import NUMBERED, two_keys_with_the_same_text
from tests.spark.conftest import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


def test_positions_limit_the_batch_and_tasks_can_outnumber_partitions(
    spark: SparkSession, hub: Emulator, options: dict[str, str]
) -> None:
    for partition in range(8):
        hub.append(HUB, str(partition), [f"{partition}/{n}".encode() for n in range(10)], partition_key="key")
    found = (
        spark.read.format("ehbalance")
        .options(**options)
        .option("startingPosition", '{"0": 3, "1": "latest", "*": 8}')
        .option("endingPosition", '{"0": 5, "2": 9, "*": "latest"}')
        .option("minPartitions", "10")
        .load()
    )
    assert found.rdd.getNumPartitions() >= 10
    expected = [("0", 3), ("0", 4), ("2", 8)] + [(str(p), n) for p in range(3, 8) for n in (8, 9)]
    columns = "partition string, sequenceNumber bigint, body string, partitionKey string"
    assert_df_equality(
        found.selectExpr("partition", "sequenceNumber", "cast(body as string) body", "partitionKey"),
        spark.createDataFrame([(p, n, f"{p}/{n}", "key") for p, n in expected], columns),
        ignore_row_order=True,
        ignore_nullable=True,
    )
    assert found.schema == spark.createDataFrame([], SPARK_SCHEMA).schema


def test_schema_selects_columns(spark: SparkSession, hub: Emulator, options: dict[str, str]) -> None:
    hub.append(HUB, "0", ["größer".encode(), b""])
    schema = "body string, sequenceNumber long, partition string"
    found = spark.read.format("ehbalance").options(**options).schema(schema).load()
    assert_df_equality(found, spark.createDataFrame([("größer", 0, "0"), ("", 1, "0")], schema), ignore_row_order=True)


def test_malformed_events_are_kept_as_rows(spark: SparkSession, hub: Emulator, options: dict[str, str]) -> None:
    hub.append(HUB, "0", [b"sound"])
    hub.append_encoded(HUB, "0", NUMBERED["cut off"])
    hub.append_encoded(HUB, "0", two_keys_with_the_same_text())
    read = spark.read.format("ehbalance").options(**options, onMalformed="keep").load()
    sound, malformed, twice = read.orderBy("sequenceNumber").collect()
    assert (sound.body, malformed.body, twice.body) == (b"sound", None, b"body")
    assert malformed.systemProperties.keys() >= {"ehbalance-malformed", "ehbalance-raw"}
    assert twice.properties == {"1": "b"}, "maps have no key twice"


def test_positions_by_time_and_an_empty_hub(spark: SparkSession, hub: Emulator, options: dict[str, str]) -> None:
    def bodies(**positions: str) -> list[bytes]:
        found = spark.read.format("ehbalance").options(**options | positions).load()
        return [bytes(row.body) for row in found.collect()]

    assert bodies() == bodies(startingPosition="latest") == []
    hub.append(HUB, "0", [b"early"])
    between = datetime.now(timezone.utc) + timedelta(milliseconds=2)  # times in AMQP are whole milliseconds
    wait_until(lambda: datetime.now(timezone.utc) > between, "a moment has passed")
    hub.append(HUB, "0", [b"late"])
    moment = between.isoformat(timespec="milliseconds")
    assert bodies(startingPosition=moment) == [b"late"]
    assert bodies(endingPosition=moment) == [b"early"]
