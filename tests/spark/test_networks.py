"""A stream by websocket with a private authority: planner and workers are processes of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB

pytestmark = pytest.mark.spark


def test_a_stream_by_websocket(spark: SparkSession, tmp_path: Path) -> None:
    seen = Counter[tuple[str, int]]()

    def count(frame: DataFrame, _: int) -> None:
        seen.update((row.partition, row.sequenceNumber) for row in frame.collect())

    with Emulator({HUB: 2}, tls=True, websocket_port=0) as hub:
        for partition in range(2):
            hub.append(HUB, partition, [b"event"] * 500)
        options = {
            "connectionString": hub.connection_string(HUB),
            "startingPosition": "earliest",
            "leaseTable": str(tmp_path / "leases"),
            "transportType": "AmqpOverWebsocket",
            "customEndpointAddress": f"localhost:{hub.websocket_port}",
            "caFile": str(hub.ca_file),
        }
        query = (
            spark.readStream.format("ehbalance")
            .options(**options)
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert seen == Counter((str(partition), number) for partition in range(2) for number in range(500))
