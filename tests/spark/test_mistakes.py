"""Users' mistakes: our error is the first line of the exception's text."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def hub() -> Iterator[Emulator]:
    """A hub with two partitions that checks keys."""
    with Emulator({HUB: 2}, sas_keys={"reader": "cmlnaHQ="}) as running:
        running.append(HUB, "0", [b"event"])
        yield running


@dataclass(frozen=True)
class Place:
    """Valid options and a folder, for the mistakes to change."""

    spark: SparkSession
    right: dict[str, str]
    folder: Path

    def frame(self, **wrong: str) -> DataFrame:
        return self.spark.readStream.format("ehbalance").options(**self.right | wrong).load()

    def start(self, frame: DataFrame) -> None:
        writer = frame.writeStream.format("noop")
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(55), "the query has not failed"
        finally:
            query.stop()

    def batch(self, **wrong: str) -> None:
        self.spark.read.format("ehbalance").options(**self.right | wrong).load().count()


def _write(at: Place) -> None:
    """Write a row that is not an event."""
    connection = at.right["connectionString"]
    rows = at.spark.sql("select repeat('x', 2000000) as body")
    rows.write.format("ehbalance").option("connectionString", connection).mode("append").save()


def _foreign_checkpoint(at: Place) -> None:
    """Create the checkpoint of a query that reads Spark's `rate` source."""
    checkpoint = at.folder / "checkpoint"
    for name in ("offsets", "commits", "sources/0"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"6c1d5a7a-9dd3-4c84-b4bb-3bd97df4d3d9"}')
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (checkpoint / "offsets/0").write_text(f"v1\n{settings}\n7")
    (checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    at.start(at.frame())


#: Name → (the mistake, a pattern for our line), one for every place that raises errors. `tests/query/test_options.py`
#: covers the options, and `tests/query/test_assembly.py` the errors of planners.
MISTAKES: dict[str, tuple[Callable[[Place], None], str]] = {
    "misspelled option": (
        lambda at: at.start(at.frame(maxEventPerTrigger="5")),
        r"\[EHB_OPTION_UNKNOWN\] 'maxeventpertrigger' .* maxEventsPerTrigger\?",
    ),
    "unknown consumer group": (
        lambda at: at.start(at.frame(consumerGroup="none", leaseTable=str(at.folder / "leases"))),
        r"\[EHB_HUB_NOT_FOUND\] .*'none'",
    ),
    "end beyond the last event of a batch": (
        lambda at: at.batch(endingPosition='{"0": 500, "*": "latest"}'),
        r"\[EHB_POSITION_INVALID\] .* partition 0 .* 500",
    ),
    "write": (_write, r"\[EHB_ROW_UNSENDABLE\] .*2,000,016"),
    "checkpoint of another source": (_foreign_checkpoint, r"\[EHB_CHECKPOINT_FOREIGN\] .* another source"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_our_error_is_the_first_line(name: str, spark: SparkSession, hub: Emulator, tmp_path: Path) -> None:
    make, ours = MISTAKES[name]
    right = {"connectionString": hub.connection_string(HUB), "startingPosition": "earliest"}
    with pytest.raises(PySparkException) as raised:
        make(Place(spark, right, tmp_path))
    line = rf"spark_ehbalance\.errors\.\w+: .*{ours}"
    # Spark adds a line before an executor's error.
    first = str(raised.value).removeprefix("An exception was thrown from the Python worker:\n").splitlines()[0]
    assert re.search(line, first)
    assert "cmlnaHQ" not in "".join(traceback.format_exception(raised.value))
