"""A real query that is started again while its lease table is gone: nothing is skipped in silence, and the table can be
made from the query's own checkpoint. `tests/query/test_past.py` has all ways to lose one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.ops.command import Command, kept
from tests.spark.test_single_query import fill, read_available
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


def test_a_restart_without_the_lease_table(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path, ehbalance: Command
) -> None:
    options = {**shared_options, "startingPosition": "latest"}
    assert read_available(spark, options, tmp_path) == []
    before = fill(hub, 5)
    assert read_available(spark, options, tmp_path) == sorted(before)

    everything = fill(hub, 10)
    with DeltaStore(options["leaseTable"]) as store:
        wait_until(lambda: not store.read().members, "the query's planner, which may still be leaving, has left")
    shutil.rmtree(options["leaseTable"])
    with pytest.raises(StreamingQueryException, match=r"DataLossError: \[EHB_LEASE_TABLE_LOST\]"):
        read_available(spark, options, tmp_path)

    found = ehbalance("positions", tmp_path / "checkpoint")
    assert found.code == 0, found.err
    (tmp_path / "p.json").write_text(found.out)
    connection = kept(options["connectionString"], tmp_path)
    ehbalance.succeeds("init", options["leaseTable"], *connection, "--positions", tmp_path / "p.json")
    assert set(read_available(spark, options, tmp_path / "new")) >= everything - before
