"""Events that cannot be read, through Spark. `tests/query/test_malformed.py` has them in streams."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.emulator import Emulator
from tests.query.poison import NUMBERED, two_keys_of_one_text
from tests.spark.conftest import HUB

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


@pytest.fixture
def poisoned(hub: Emulator) -> Emulator:
    """Partition 0: sound, not, sound, not; 1: only one that is not; 2: one that is not after a sound one; 3: one whose
    map has two keys of one text."""
    for _ in range(2):
        hub.append(HUB, "0", [b"sound"])
        hub.append_encoded(HUB, "0", NUMBERED["map as key"])
    hub.append_encoded(HUB, "1", NUMBERED["unknown type"])
    hub.append(HUB, "2", [b"sound"])
    hub.append_encoded(HUB, "2", NUMBERED["cut off"])
    hub.append_encoded(HUB, "3", two_keys_of_one_text())
    return hub


#: Of which partition depends on which is read first.
TOLD = r"partition \d: event \d cannot be read: .*onMalformed=skip"

SOUND = {("0", 0), ("0", 2), ("2", 0), ("3", 0)}
KEPT = SOUND | {("0", 1), ("0", 3), ("1", 0), ("2", 1)}


def found(rows: DataFrame) -> set[tuple[str, int | None]]:
    got = [(row.partition, row.sequenceNumber, row.body, row.systemProperties) for row in rows.collect()]
    for _, _, body, system in got:
        assert (body is None) == ("ehbalance-malformed" in system) == ("ehbalance-raw" in system)
    assert len({each[:2] for each in got}) == len(got)
    return {each[:2] for each in got}


def test_a_batch(spark: SparkSession, poisoned: Emulator, options: dict[str, str]) -> None:
    read = spark.read.format("ehbalance").options(**options)
    with pytest.raises(PySparkException, match=TOLD):
        read.load().count()
    assert found(read.option("onMalformed", "keep").load()) == KEPT
    sound = read.option("onMalformed", "skip").load()
    assert found(sound) == SOUND
    row = sound.where("partition = '3'").selectExpr("properties", "size(properties) size").head()
    assert row is not None
    assert (row.properties, row.size) == ({"1": "b"}, 1), "maps have no key twice"
