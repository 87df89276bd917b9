"""The demo's verdict on a Delta table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ehbalance.demo.flights import bodies, keys, partitions_of
from spark_ehbalance.demo.verdict import Verdict, judge

PARTITIONS = 2


@pytest.fixture
def played() -> pd.DataFrame:
    """A dozen flights."""
    return pd.DataFrame(
        {
            "year": 2013,
            "month": 1,
            "day": 1,
            "dep_time": 517.0,
            "sched_dep_time": 515,
            "dep_delay": [float(number) for number in range(12)],
            "arr_delay": 20.0,
            "carrier": "UA",
            "flight": range(12),
            "tailnum": [f"N{number}" for number in range(11)] + [None],
            "origin": ["EWR", "JFK", "LGA"] * 4,
        }
    )


def verdict(played: pd.DataFrame, folder: Path, rows: list[int], key_of_first: str | None = "N0") -> Verdict:
    """The verdict on a table that contains `rows` of the sent flights."""
    partitions = partitions_of(keys(played), PARTITIONS)
    events = pd.DataFrame(
        {
            "partition": [str(partition) for partition in partitions],
            "sequenceNumber": pd.Series(partitions).groupby(partitions).cumcount(),
            "partitionKey": [key_of_first, *keys(played)[1:]],
            "body": bodies(played),
        }
    )
    table = str(folder / "events")
    for part in (rows[::2], rows[1::2]):
        write_deltalake(table, pa.Table.from_pandas(events.iloc[part], preserve_index=False), mode="append")
    return judge(table, [partitions.count(partition) for partition in range(PARTITIONS)], played)


def test_a_complete_table_passes(played: pd.DataFrame, tmp_path: Path) -> None:
    found = verdict(played, tmp_path, list(range(12)))

    assert (found.rows, found.missing, found.duplicates, found.twice) == (12, 0, 0, [])
    assert found.complete


def test_duplicates_do_not_compensate_for_missing_events(played: pd.DataFrame, tmp_path: Path) -> None:
    found = verdict(played, tmp_path, [0, 0, 0, *range(3, 12)])

    assert (found.missing_events, found.missing_flights) == (2, 2)
    assert (found.duplicate_events, found.duplicate_flights) == (2, 2)
    assert not found.complete


def test_duplicates_alone_are_a_failure(played: pd.DataFrame, tmp_path: Path) -> None:
    found = verdict(played, tmp_path, [*range(12), *range(12)])

    assert (found.missing, found.duplicates) == (0, 12)
    assert len(found.twice) == PARTITIONS
    assert not found.complete


def test_a_partition_key_that_is_not_the_tail_number_is_a_failure(played: pd.DataFrame, tmp_path: Path) -> None:
    found = verdict(played, tmp_path, list(range(12)), key_of_first="N99")

    assert found.wrong_keys == 1
    assert not found.complete
