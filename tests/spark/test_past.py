"""Checkpoints that are copied, and that go on under another name, with real Spark and real sinks.

`tests/source/test_past.py` has all that may have happened to a checkpoint.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.delta import once
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.query_process import RUNS, Query, QueryProcess
from tests.spark.tables import held
from tests.spark.test_single_query import fill, run_available
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


def wait_for(query: Query, count: int) -> None:
    wait_until(lambda: len(query.rows()) >= count, f"{count} rows are written", timeout=60)


def test_a_copy_of_a_checkpoint_is_refused_and_a_rolling_restart_is_not(
    hub: Emulator,
    shared_options: dict[str, str],
    tmp_path: Path,
    processes: Callable[[int], list[QueryProcess]],
) -> None:
    """The copy writes into the same table: with one query id Delta would leave out the batches of the other. The query
    that runs goes on. In a rolling restart the new process is started while the old one runs: it takes over, or ends
    before it has read anything and is started again, as a cluster manager does."""
    first, second, third = processes(3)
    one, other = tmp_path / "one", tmp_path / "other"
    options = shared_options | {"leaseDuration": "30 s"}
    old = first.start(options | {"ownerId": "pod-1"}, one)
    fill(hub, 10)
    wait_for(old, 80)
    shutil.copytree(one / "checkpoint", other / "checkpoint")
    third.start(options | {"ownerId": "other"}, other, table=one / "table")
    fill(hub, 10)
    wait_for(old, 160)
    second.start(options | {"ownerId": "pod-2"}, one)
    fill(hub, 10)
    wait_for(old, 240)
    old.stop()
    everything = fill(hub, 10)
    new, error = Query(second, one, one / "table"), RUNS
    while error == RUNS and len(new.rows()) < 320:
        error = second.error(one, 0.5)
    if error != RUNS:
        assert "Nothing was read or written here: start it again" in error or "CONCURRENT_STREAM_LOG_UPDATE" in error
        second.start(options | {"ownerId": "pod-2"}, one)
    wait_for(new, 320)
    with DeltaStore(options["leaseTable"]) as store:
        assert {each.owner for each in store.read().leases.values()} == {"pod-2"}
    new.stop()
    error = third.error(other)  # it has waited for the end of the one that ran, or for a lease duration
    assert "this query runs already as" in error or "is a copy of one that went on" in error
    third.start(options | {"ownerId": "other"}, other, table=one / "table")
    assert "is a copy of one that went on" in third.error(other)
    assert Counter(new.rows()) == Counter(everything)


def test_a_copy_without_a_lease_table_goes_on_exactly_once_in_another_table(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    """The copy is made in a batch. Its table gets that batch and all later ones; the first one's gets all."""
    one, other = tmp_path / "one", tmp_path / "other"
    write = once(str(one / "table"))

    def process(df: DataFrame, batch_id: int) -> None:
        if not other.exists():
            shutil.copytree(one / "checkpoint", other / "checkpoint")
        write(df, batch_id)

    earlier = fill(hub, 10)
    run_available(spark, options, one, process=write)
    fill(hub, 10)
    run_available(spark, options, one, process=process)
    everything = fill(hub, 10)
    run_available(spark, options, one, process=write)
    run_available(spark, options, other, process=once(str(other / "table")))
    assert held(one / "table") == Counter(everything)
    assert held(other / "table") == Counter(everything - earlier)
