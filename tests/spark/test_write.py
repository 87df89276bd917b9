"""`df.write` and `df.writeStream.format("ehbalance")`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.sending.write_options import write_options
from spark_ehbalance.eventhub.sending.writing import SendResult
from spark_ehbalance.spark import writer
from tests.spark.conftest import HUB

pytestmark = pytest.mark.spark

DDL = "body binary, partitionKey string, partitionId int, properties map<string,string>"
ROWS = [
    (b"one", "key", None, {"a": "1", "b": None}),
    (b"", None, 3, {}),
    (None, "tombstone", None, None),
    ("größer".encode(), None, None, {"ä": "ö"}),
]


@pytest.fixture
def connection(hub: Emulator) -> dict[str, str]:
    return {"connectionString": hub.connection_string(HUB)}


def test_written_events_are_read_back(spark: SparkSession, connection: dict[str, str]) -> None:
    frame = spark.createDataFrame(ROWS, DDL)
    frame.write.format("ehbalance").options(**connection).mode("append").save()
    found = spark.read.format("ehbalance").options(**connection).load()
    expected = [(body, key, {name: value or "null" for name, value in (p or {}).items()}) for body, key, _, p in ROWS]
    columns = "body binary, partitionKey string, properties map<string,string>"
    assert_df_equality(
        found.select("body", "partitionKey", "properties").orderBy("body", "partitionKey"),
        spark.createDataFrame(expected, columns).orderBy("body", "partitionKey"),
        ignore_nullable=True,
    )
    assert [row.partition for row in found.where("body = ''").collect()] == ["3"]


def test_stream_is_written_in_order_and_rows_are_counted(
    spark: SparkSession, hub: Emulator, connection: dict[str, str], options: dict[str, str], tmp_path: Path
) -> None:
    """Copies one hub to another; events with the same key keep their order."""
    hub.add_hub("copy", 4)
    for number in range(300):
        hub.append(HUB, number % 8, [b"%d" % number], partition_key=f"key {number % 8}")
    query = (
        spark.readStream.format("ehbalance")
        .options(**options, maxEventsPerTrigger="100")
        .load()
        .select("body", "partitionKey", "properties")
        .writeStream.format("ehbalance")
        .option("connectionString", hub.connection_string("copy"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    written = [progress.sink.numOutputRows for progress in query.recentProgress]
    assert sum(written) == 300
    assert max(written) <= 100
    found = spark.read.format("ehbalance").option("connectionString", hub.connection_string("copy")).load()
    rows = found.selectExpr("partitionKey", "cast(cast(body as string) as int) as number", "sequenceNumber").collect()
    for key in range(8):
        of_key = [row for row in rows if row.partitionKey == f"key {key}"]
        assert [row.number for row in sorted(of_key, key=lambda row: row.sequenceNumber)] == list(range(key, 300, 8))


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("overwrite", {}, r"\[EHB_OPTION_INVALID\] mode='overwrite'"),
        (
            "append",
            {"sendTimeout": "soon"},
            r"\[EHB_OPTION_INVALID\] sendTimeout='soon' is invalid. Allowed: a duration",
        ),
    ],
)
def test_invalid_write_is_rejected_before_it_starts(
    spark: SparkSession, hub: Emulator, connection: dict[str, str], mode: str, options: dict[str, str], message: str
) -> None:
    frame = spark.createDataFrame(ROWS, DDL)
    with pytest.raises(PySparkException, match=message):
        frame.write.format("ehbalance").options(**connection, **options).mode(mode).save()
    assert hub.connections() == 0


def test_rows_are_converted_to_arrow_batches(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, connection: dict[str, str], hub: Emulator
) -> None:
    """Spark 4.0 passes rows."""
    schema = StructType.fromDDL("value string, headers array<struct<key:string,value:binary>>")
    monkeypatch.setattr(writer, "takes_arrow", lambda _: False)
    monkeypatch.setattr(writer, "_ROWS", 2)
    given = write_options(connection | {"kafkaColumns": "true"})

    def rows() -> Iterator[Row]:
        for number in range(5):
            yield Row(value=str(number), headers=[Row(key="n", value=bytearray(b"%d" % number))])

    done = writer.stream_writer(given, schema).write(rows())
    assert done.sent.events == 5
    found = spark.read.format("ehbalance").options(**connection).load().collect()
    assert {(bytes(row.body), row.properties["n"]) for row in found} == {
        (b"%d" % number, f"[{48 + number}]") for number in range(5)
    }


def test_resent_batches_are_reported_by_default(connection: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    written = writer.batch_writer(write_options(connection), StructType().add("body", "binary"), overwrite=False)
    written.commit([writer.TaskDone(SendResult(events=9, again=again)) for again in (0, 2, 1)])
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith("Write: 3 batches were sent again")
    caplog.clear()
    written.commit([writer.TaskDone(SendResult(events=9))])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
