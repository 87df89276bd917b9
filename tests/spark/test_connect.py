"""Spark Connect: `write_once` and `merge` without access to the JVM, in a separate server and session."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.exactly_once.target import MERGED_IDENTIFIER
from tests.spark.settings import SETTINGS
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill

# It uses its own Spark and has no time limits that a busy machine could exceed.
pytestmark = [pytest.mark.heavy, pytest.mark.spark, pytest.mark.xdist_group("own spark")]


def test_events_are_written_exactly_once_with_spark_connect(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    """A crash between sink and checkpoint, two concurrent MERGEs, a type that does not fit, and a replaced table."""
    sent = fill(hub, 20)
    client = subprocess.run(
        [sys.executable, "-m", "tests.spark.test_connect", json.dumps(shared_options), str(tmp_path)],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_TESTING": "1",  # the server chooses a free port
            "SPARK_AUTH_SOCKET_TIMEOUT": "120",  # 15 s are not enough on a busy machine
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=420,
        check=True,
    )
    result = json.loads(client.stdout.splitlines()[-1])
    assert "column body is double in the frame and string in the table" in result.pop("refused")
    assert result == {"crashed": True, "ended": True, "conflict": "TABLE"}
    target = deltalake.DeltaTable(str(tmp_path / "target"))
    assert target.transaction_version(MERGED_IDENTIFIER) == 1, "after the table was replaced too"
    assert events_in(tmp_path / "target") == Counter({*sent, *(("0", number) for number in range(1000, 1005))})


def _main(options: dict[str, str], folder: Path) -> dict[str, Any]:
    """The client; the function passed to `foreachBatch` runs in a Python process of the server."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    import spark_ehbalance
    from spark_ehbalance.errors import TargetError
    from spark_ehbalance.exactly_once import once
    from tests.spark.merge_race import race

    target, crashed = str(folder / "target"), str(folder / "crashed")
    write = once(target)
    spark = SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()

    def process(df: Any, batch_id: int) -> None:
        import pathlib

        write(df.select("partition", "sequenceNumber", df.body.cast("string").alias("body")), batch_id)
        if not pathlib.Path(crashed).exists():
            pathlib.Path(crashed).touch()
            raise RuntimeError("a crash before the checkpoint")

    ended = False
    for _ in range(5):  # retry after the crash, and if Python needs more than Spark's 10 s to start
        writer = spark.readStream.format("ehbalance").options(**options).load().writeStream.foreachBatch(process)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        with contextlib.suppress(PySparkException):
            ended = writer.start().awaitTermination(120)
            break
    conflict = race(spark, f"delta.`{target}`", 1000, folder)
    again = spark.range(1000, 1005).selectExpr("'0' AS partition", "id AS sequenceNumber", "'y' AS body")
    spark_ehbalance.merge(again, target)
    refused = ""
    try:
        spark_ehbalance.merge(again.selectExpr("partition", "sequenceNumber", "1.5D AS body"), target)
    except TargetError as error:
        refused = str(error)
    spark.sql(f"CREATE OR REPLACE TABLE delta.`{target}` USING delta AS SELECT * FROM delta.`{target}`")
    spark_ehbalance.merge(again, target)
    spark.stop()
    result = {"crashed": Path(crashed).exists(), "ended": ended, "refused": refused}
    return result | {"conflict": conflict.name if conflict else None}


if __name__ == "__main__":
    print(json.dumps(_main(json.loads(sys.argv[1]), Path(sys.argv[2]))))
