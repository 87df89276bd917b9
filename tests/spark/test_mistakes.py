"""Whatever a user does wrong: our line is the last that Python prints, and in the first of the exception's text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.spark.error_line import repeat_at_the_end
from tests.spark.conftest import HUB

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("second spark")]


@pytest.fixture(scope="module")
def hub() -> Iterator[Emulator]:
    """A hub of two partitions whose keys are checked."""
    with Emulator({HUB: 2}, sas_keys={"reader": "cmlnaHQ="}) as running:
        running.append(HUB, "0", [b"event"])
        yield running


@dataclass(frozen=True)
class Place:
    """Where mistakes are made: options that are right, and a folder."""

    spark: SparkSession
    right: dict[str, str]
    folder: Path

    def frame(self, **wrong: str) -> DataFrame:
        return self.spark.readStream.format("ehbalance").options(**self.right | wrong).load()

    def start(self, frame: DataFrame, format: str = "noop") -> None:
        writer = frame.writeStream.format(format).options(**self.right)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(55), "the query has not failed"
        finally:
            query.stop()

    def batch(self, **wrong: str) -> None:
        self.spark.read.format("ehbalance").options(**self.right | wrong).load().count()

    def sql(self, statement: str, **more: str) -> None:
        options = {"connectionString": self.right["connectionString"], **more}
        given = ", ".join(f"{name} '{value}'" for name, value in options.items())
        self.spark.sql(f"{statement} USING ehbalance OPTIONS ({given})")


def _schema(at: Place) -> None:
    at.start(at.spark.readStream.format("ehbalance").options(**at.right).schema("body int").load())


def _write(at: Place) -> None:
    """A row that is no event."""
    connection = at.right["connectionString"]
    rows = at.spark.sql("select repeat('x', 2000000) as body")
    rows.write.format("ehbalance").option("connectionString", connection).mode("append").save()


def _view(at: Place) -> None:
    at.sql("CREATE TEMPORARY VIEW hub", leaseTable="/l")
    at.spark.sql("SELECT count(*) FROM hub").collect()


def _foreign_checkpoint(at: Place) -> None:
    """A checkpoint that a query with Spark's source `rate` has left."""
    checkpoint = at.folder / "checkpoint"
    for name in ("offsets", "commits", "sources/0"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"6c1d5a7a-9dd3-4c84-b4bb-3bd97df4d3d9"}')
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (checkpoint / "offsets/0").write_text(f"v1\n{settings}\n7")
    (checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    at.start(at.frame())


#: Name → what the user does, and a pattern of our line: one for each place from which an error comes. Options by
#: themselves: `tests/query/test_options.py`; what a planner finds wrong: `tests/query/test_assembly.py`.
MISTAKES: dict[str, tuple[Callable[[Place], None], str]] = {
    "misspelled option": (
        lambda at: at.start(at.frame(maxEventPerTrigger="5")),
        r"there is no option 'maxeventpertrigger': did you mean maxEventsPerTrigger\?",
    ),
    "unknown consumer group": (
        lambda at: at.start(at.frame(consumerGroup="none", leaseTable=str(at.folder / "leases"))),
        r"consumer group 'none' does not exist",
    ),
    "end beyond the last event of a batch": (
        lambda at: at.batch(endingPosition='{"0": 500, "*": "latest"}'),
        r"partition 0: endingPosition means sequence number 500",
    ),
    "schema": (_schema, r"\.schema\(\) has body int: allowed are body binary, .*"),
    "writeStream": (
        lambda at: at.start(at.frame(), "ehbalance"),
        r"df\.write has no option startingPosition: it is for reading, leave it out",
    ),
    "write": (_write, r"row 1 of a task cannot be sent: the event has 2,000,016 bytes with its properties"),
    "CREATE TABLE": (
        lambda at: at.sql("CREATE TABLE mistaken"),
        r"ehbalance has no tables in a catalog.*use CREATE TEMPORARY VIEW",
    ),
    "view with an option of a stream": (_view, r"spark\.read has no option leaseTable: it is for spark\.readStream"),
    "checkpoint of another source": (_foreign_checkpoint, r"the query's checkpoint holds offsets of another source"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_our_line_is_the_first_and_the_last(name: str, spark: SparkSession, hub: Emulator, tmp_path: Path) -> None:
    repeat_at_the_end()  # `register` does so
    make, ours = MISTAKES[name]
    right = {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}
    with pytest.raises(PySparkException) as raised:
        make(Place(spark, right, tmp_path))
    shown = "".join(traceback.format_exception(raised.value)).rstrip().splitlines()
    line = rf"spark_ehbalance\.errors\.\w+: .*{ours}"
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
    job = tmp_path / "job.py"
    options = {"connectionString": hub.connection_string(HUB), "consumerGroup": "none"}
    job.write_text(JOB.format(options=options, checkpoint=str(tmp_path / "checkpoint")))
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(job)], stderr=subprocess.PIPE, text=True, env={**os.environ, **python}, timeout=420
    )
    assert done.returncode == 1
    assert "consumer group 'none' does not exist" in done.stderr.rstrip().splitlines()[-1]
