"""The lease table in the hands of Spark and Delta, while queries run that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ehbalance.delta.conflicts import JVM_ERRORS, conflict_of
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.member.keepers import Keepers, begin_batch, end_batch
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Write = Callable[[SparkSession, str], object]

WRITTEN_BY_SPARK: dict[str, Write] = {
    "DELETE": lambda spark, table: spark.sql(f"DELETE FROM {table}"),
    "DELETE some": lambda spark, table: spark.sql(f"DELETE FROM {table} WHERE id IN ('1', '2')"),
    "UPDATE": lambda spark, table: spark.sql(f"UPDATE {table} SET owner = NULL, epoch = 0, sequence_number = -1"),
    "append": lambda spark, table: spark.sql(f"INSERT INTO {table} SELECT * FROM {table}"),
    "OPTIMIZE": lambda spark, table: spark.sql(f"OPTIMIZE {table}"),
}


def written(write: Write, spark: SparkSession, table: str) -> bool:
    """Whether no commit of a member came in between, for which Delta refuses Spark's."""
    try:
        write(spark, table)
    except JVM_ERRORS as error:
        if conflict_of(error) is None:
            raise
        return False
    return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Keepers]:
    # Spark takes seconds to read a log, of which old files are removed meanwhile: it would have to try again.
    group = Keepers(lambda: DeltaStore(str(tmp_path / "leases")), tidy_interval=3600.0)
    yield group
    group.close()


@pytest.mark.parametrize("what", WRITTEN_BY_SPARK)
def test_running_members_go_on_whatever_spark_writes(
    running: Keepers, spark: SparkSession, tmp_path: Path, what: str
) -> None:
    ann = running.start("ann", lease_duration=300.0)
    running.wait_owned(ann=4)
    end_batch(ann, begin_batch(ann), 41)
    wait_until(lambda: {each.checkpoint for each in running.leases.values()} == {Position(41)}, "all is checkpointed")
    layout, batch = running.layout(), begin_batch(ann)
    wait_until(lambda: written(WRITTEN_BY_SPARK[what], spark, f"delta.`{tmp_path / 'leases'}`"), "Spark has written")
    end_batch(ann, batch, 99)
    wait_until(lambda: {each.checkpoint for each in running.leases.values()} == {Position(99)}, "it has gone on")
    assert running.layout() == layout
    assert len(ann.holdings()) == 4
