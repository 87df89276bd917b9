"""Sinks that know their batches by number, after the checkpoint was deleted or set back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.docs.blocks import blocks
from tests.spark.tables import held
from tests.spark.test_single_query import fill, run_available

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


class Job:
    """A query from `ehbalance` to files or to Delta's own sink, with a listener, in batches of 8 events."""

    def __init__(self, spark: SparkSession, format: str, folder: Path, options: Mapping[str, str]) -> None:
        self._spark, self._format, self._options = spark, format, {**options, "maxEventsPerTrigger": "8"}
        self.checkpoint, self.output = folder / "checkpoint", folder / "output"
        spark_ehbalance.register(spark)

    def start(self) -> StreamingQuery:
        events = self._spark.readStream.format("ehbalance").options(**self._options).load()
        writer = events.select("partition", "sequenceNumber").writeStream.format(self._format)
        return (
            writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start(str(self.output))
        )

    def run(self) -> None:
        assert self.start().awaitTermination(120)

    def error(self) -> str:
        with pytest.raises(StreamingQueryException) as caught:
            self.start().awaitTermination(120)
        return str(caught.value)

    def rows(self) -> Counter[tuple[str, int]]:
        return Counter(
            (row.partition, row.sequenceNumber)
            for row in self._spark.read.format(self._format).load(str(self.output)).collect()
        )


def positions(options: Mapping[str, str]) -> dict[str, Any]:
    with DeltaStore(options["leaseTable"]) as store:
        return {partition: lease.checkpoint for partition, lease in store.read().leases.items()}


def test_a_new_checkpoint_for_a_folder_of_files_is_refused(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    job = Job(spark, "parquet", tmp_path, shared_options)
    fill(hub, 2)
    job.run()
    last = max(int(each.name) for each in (job.checkpoint / "commits").glob("[0-9]*"))
    (job.checkpoint / "commits" / str(last)).unlink()  # as when killed before Spark has noted the batch
    (job.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    before = fill(hub, 1)
    job.run()
    assert job.rows() == Counter(before), "with its own checkpoint it goes on"
    fill(hub, 5)
    read = positions(shared_options)
    shutil.rmtree(job.checkpoint)
    error = job.error()
    assert "spark_ehbalance.errors.DataLossError: FileSink[file:" in error
    assert "/checkpoint has no batch yet: it is new, was set back, or belongs to another output" in error
    assert "or write to a new folder" in error
    assert positions(shared_options) == read
    assert job.rows() == Counter(before)
    job.output = tmp_path / "new"  # as the error advises
    job.run()
    assert job.rows() + Counter(before) == Counter(fill(hub, 0))


def test_a_checkpoint_that_was_set_back_is_refused_for_deltas_own_sink(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    """Without a lease table nothing else tells."""
    job, copy = Job(spark, "delta", tmp_path, options), tmp_path / "copy"
    fill(hub, 2)
    job.run()
    shutil.copytree(job.checkpoint, copy)
    before = fill(hub, 2)
    job.run()
    shutil.rmtree(job.checkpoint)
    shutil.copytree(copy, job.checkpoint)
    fill(hub, 5)
    ends = max(int(each.name) for each in (copy / "offsets").glob("[0-9]*"))
    error = job.error()
    assert "spark_ehbalance.errors.DataLossError: DeltaSink[" in error
    assert f"/checkpoint ends with batch {ends}: " in error
    assert "or set a new checkpointLocation" in error
    assert job.rows() == Counter(before)


def test_queries_that_share_write_under_their_own_ids(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    """With the function of the documentation. Under one id Delta would leave out what either writes with a number that
    the other has had: here they take turns, and number their batches alike."""
    (block,) = (each for each in blocks("docs/sharing.md") if "txnAppId" in each.text)
    table, names = str(tmp_path / "table"), dict[str, Any]()
    exec(block.text.replace("/data/flights", table), names)
    for name in "abab":
        sent = fill(hub, 2)
        run_available(spark, shared_options, tmp_path / name, process=names["write"])
    assert held(table) == Counter(sent)
    ids = [json.loads((tmp_path / name / "checkpoint" / "metadata").read_text())["id"] for name in "ab"]
    numbers = [DeltaTable(table).transaction_version(f"flights {each}") for each in ids]
    assert None not in numbers, "each has written"
