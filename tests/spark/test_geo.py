"""A geo-replicated hub, read by Spark and written exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.exactly_once import once
from tests.spark.conftest import HUB
from tests.spark.test_single_query import run_available

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

PARTITIONS = 2


@pytest.fixture
def hub() -> Iterator[Emulator]:
    with Emulator({HUB: PARTITIONS}, geo_replicated=True) as running:
        yield running


def send(hub: Emulator, label: str, count: int) -> list[str]:
    """Events with bodies of their own in each partition."""
    bodies = [[f"{label} {partition} {number}" for number in range(count)] for partition in range(PARTITIONS)]
    for partition, each in enumerate(bodies):
        hub.append(HUB, partition, [body.encode() for body in each])
    return [body for each in bodies for body in each]


def written(target: str) -> list[str]:
    return sorted(body.decode() for body in DeltaTable(target).to_pyarrow_table()["body"].to_pylist())


def test_what_is_written_exactly_once_before_and_after_promotions(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    target, folder = str(tmp_path / "target"), tmp_path / "query"
    sent = send(hub, "first", 5)
    run_available(spark, options, folder, process=once(target))
    hub.promote(HUB)
    sent += send(hub, "second", 5)
    run_available(spark, options, folder, process=once(target))
    # Another query finds out that it has read what the target holds, from the mark in the middle of its range.
    sent += send(hub, "third", 5)
    run_available(spark, options, tmp_path / "other query", process=once(target))
    assert written(target) == sorted(sent)

    hub.promote(HUB, 3)
    new = send(hub, "fourth", 8)
    with pytest.raises(StreamingQueryException, match="EHB_POSITION_UNKNOWN"):
        run_available(spark, options, tmp_path / "other query", process=once(target))
    moved = {**options, "startingPosition": "12"}
    with pytest.raises(StreamingQueryException, match=r"holds events up to 14 .* that are gone.*was promoted"):
        run_available(spark, moved, tmp_path / "new query", process=once(target))
    assert written(target) == sorted(sent)
    run_available(spark, moved, tmp_path / "new query", process=once(target, source="after the promotion"))
    assert written(target) == sorted(sent + new)
