"""A real query that is started again while its lease table is gone, emptied or elsewhere: nothing is skipped in
silence, and the table can be made of the query's own checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.cli.command import kept
from tests.spark.test_sharing import ehbalance
from tests.spark.test_single_query import Rows, fill, rows, run_available
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Options = dict[str, str]


def left(options: Options) -> None:
    """Wait for the planner of a query that has ended, which may still be leaving."""
    with DeltaStore(options["leaseTable"]) as store:
        wait_until(lambda: not store.read().members, "the query has left")


def deleted(options: Options) -> Options:
    left(options)
    shutil.rmtree(options["leaseTable"])
    return options


def emptied(options: Options) -> Options:
    left(options)
    DeltaTable(options["leaseTable"]).delete()
    return options


def moved(options: Options) -> Options:
    left(options)
    return {**options, "leaseTable": options["leaseTable"] + "-elsewhere"}


@pytest.mark.parametrize("lose", [deleted, emptied, moved])
def test_a_restart_without_the_lease_table(
    spark: SparkSession,
    hub: Emulator,
    shared_options: Options,
    tmp_path: Path,
    lose: Callable[[Options], Options],
) -> None:
    read: Rows = []

    def process(frame: DataFrame, batch: int) -> None:
        read.extend(rows(frame))

    options = {name: value for name, value in shared_options.items() if name != "startingPosition"}  # latest
    run_available(spark, options, tmp_path, process=process)
    before = fill(hub, 5)
    run_available(spark, options, tmp_path, process=process)
    assert sorted(read) == sorted(before)

    everything = fill(hub, 10)
    options = lose(options)
    with pytest.raises(StreamingQueryException, match=r"DataLossError: leaseTable=.*--from-checkpoint DIR"):
        run_available(spark, options, tmp_path, process=process)
    assert sorted(read) == sorted(before), "nothing was read"

    connection = kept(options["connectionString"], tmp_path)
    ehbalance("init", options, *connection, "--from-checkpoint", str(tmp_path / "checkpoint"))
    run_available(spark, options, tmp_path, process=process)
    assert sorted(read) == sorted(everything)


def test_a_restart_without_fail_on_data_loss_goes_on_from_its_own_checkpoint(
    spark: SparkSession, hub: Emulator, shared_options: Options, tmp_path: Path
) -> None:
    read: Rows = []

    def process(frame: DataFrame, batch: int) -> None:
        read.extend(rows(frame))

    options = {**shared_options, "startingPosition": "latest", "failOnDataLoss": "false"}
    run_available(spark, options, tmp_path, process=process)
    fill(hub, 5)
    run_available(spark, options, tmp_path, process=process)
    everything = fill(hub, 10)
    run_available(spark, deleted(options), tmp_path, process=process)
    assert sorted(read) == sorted(everything)
