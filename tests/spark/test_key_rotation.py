"""A query that copies one hub to another while both keys are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


def test_source_and_sink_continue_with_a_new_key(spark: SparkSession, tmp_path: Path) -> None:
    keys, files = {"rw": "oldKey"}, {name: tmp_path / name for name in ("hub", "copy")}
    with Emulator(dict.fromkeys(files, 2), sas_keys=keys) as hubs:

        def send() -> None:
            for partition in (0, 1):
                hubs.append("hub", partition, [b"x"] * 5)

        def copied(count: int) -> bool:
            assert query.isActive, query.exception()
            return sum(hubs.partition_state("copy", p).next_sequence_number for p in (0, 1)) >= count

        def write_files() -> None:
            for name, file in files.items():
                file.write_text(hubs.connection_string(name))

        write_files()
        send()
        query = (
            spark.readStream.format("ehbalance")
            .options(connectionString=f"file:{files['hub']}", startingPosition="earliest")
            .load()
            .select("body")
            .writeStream.format("ehbalance")
            .options(connectionString=f"file:{files['copy']}", checkpointLocation=str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_until(lambda: copied(10), "the first events are copied", 120)
            keys["rw"] = "newKey"
            write_files()
            hubs.drop_connections()
            send()
            wait_until(lambda: copied(20), "those after the rotation are copied", 120)
        finally:
            query.stop()
