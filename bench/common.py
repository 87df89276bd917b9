"""What several measurements share: an emulator in a process of its own, and a Spark session."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ehbalance.emulator.control import EmulatorControl

HUB = "hub"


@contextlib.contextmanager
def emulator(partitions: int) -> Iterator[tuple[EmulatorControl, str]]:
    """An emulator with `HUB`, as a process of its own, so that its work is not counted as ours; and how to reach it."""
    command = [sys.executable, "-m", "spark_ehbalance.emulator", "--port", "0", "--control-port", "0"]
    with subprocess.Popen([*command, "--hub", f"{HUB}:{partitions}"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = re.fullmatch(r"Emulator ready: (\S+) \(control port (\d+)\)\n", process.stdout.readline())
            if ready is None:
                raise OSError("the emulator did not start")
            with EmulatorControl("127.0.0.1", int(ready[2])) as control:
                yield control, f"{ready[1].rstrip(';')};EntityPath={HUB}"
        finally:
            process.terminate()


def session(folder: Path, cores: int = 2) -> SparkSession:
    """A Spark session on this machine that keeps its progress reports."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("ehbalance bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -Djava.io.tmpdir={folder}")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
