"""A Spark session on this machine, for stress tests and benchmarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ehbalance.exactly_once.spark_settings import SESSION
from spark_ehbalance.spark_versions import UNIX_SOCKET

#: Java compiles sooner but less thoroughly, which is better for processes that run for only a few minutes.
FAST_START = "-XX:TieredStopAtLevel=1"

#: With these settings and Delta's jar, Spark can write Delta tables. Two tasks compute the state of a small table.
DELTA = {**SESSION, "spark.databricks.delta.snapshotPartitions": "2"}


def spark_session(master: str, folder: Path, settings: Mapping[str, str], java: str = "") -> SparkSession:
    """A session with additional `settings` and `java` options. Its files are in `folder`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)
    ours = {
        "spark.ui.enabled": "false",
        UNIX_SOCKET: "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Djava.io.tmpdir={folder} {java}".strip(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = SparkSession.builder.master(master).config(map={**ours, **settings}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
