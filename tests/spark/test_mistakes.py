"""Whatever a user does wrong: our line is the last that Python prints, and in the first of the exception's text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.source.error_line import repeat_at_the_end
from tests.spark.conftest import HUB
from tests.spark.mistakes import MISTAKES, place

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("second spark")]


@pytest.fixture(scope="module")
def hub() -> Iterator[Emulator]:
    """A hub of two partitions whose keys are checked."""
    with Emulator({HUB: 2}, sas_keys={"reader": "cmlnaHQ="}) as running:
        running.append(HUB, "0", [b"event"])
        yield running


@pytest.mark.parametrize("name", MISTAKES)
def test_our_line_is_the_first_and_the_last(name: str, spark: SparkSession, hub: Emulator, tmp_path: Path) -> None:
    repeat_at_the_end()  # `register` does so
    make, ours = MISTAKES[name]
    with pytest.raises(PySparkException) as raised:
        make(place(spark, hub, tmp_path))
    shown = "".join(traceback.format_exception(raised.value)).rstrip().splitlines()
    line = rf"spark_ehbalance\.errors\.\w+: .*{ours}"
    print(f"{name}: {shown[-1]}")
    assert re.search(line, shown[-1])
    # An executor's error has a line of Spark's before it.
    first = str(raised.value).removeprefix("An exception was thrown from the Python worker:\n").splitlines()[0]
    assert re.search(line, first)
    assert "cmlnaHQ" not in "".join(shown)


JOB = """
from pyspark.sql import SparkSession
import spark_ehbalance
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_ehbalance.register(spark)
frame = spark.readStream.format("ehbalance").options(**{options!r}).load()
query = frame.writeStream.format("noop").option("checkpointLocation", {checkpoint!r}).start()
query.awaitTermination()
"""


def test_the_last_line_of_a_job_is_ours(hub: Emulator, tmp_path: Path) -> None:
    """As `python job.py` shows it, on its standard error, with all that Spark prints there."""
    string = hub.connection_string(HUB)
    mistakes = [
        ("there is no option 'comsumergroup': did you mean consumerGroup?", {"comsumerGroup": "x"}),
        ("consumer group 'none' does not exist", {"consumerGroup": "none"}),
    ]
    jobs = []
    for number, (line, wrong) in enumerate(mistakes):
        job = tmp_path / f"job{number}.py"
        options, checkpoint = {"connectionString": string, **wrong}, str(tmp_path / f"checkpoint{number}")
        job.write_text(JOB.format(options=options, checkpoint=checkpoint))
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        process = subprocess.Popen(
            [sys.executable, str(job)], stderr=subprocess.PIPE, text=True, env={**os.environ, **python}
        )
        jobs.append((line, process))
    for line, process in jobs:
        errors = process.communicate(timeout=420)[1].rstrip().splitlines()
        assert process.returncode == 1
        assert line in errors[-1]
