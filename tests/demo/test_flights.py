"""The demo's flights: their partitions and their counts."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from spark_ehbalance.demo.flights import (
    KEY,
    Delays,
    bodies,
    by_airport,
    keys,
    load,
    missing_and_surplus,
    parse,
    partitions_of,
)
from spark_ehbalance.partition_keys import partition_index


@pytest.fixture
def some_flights() -> pd.DataFrame:
    """Four flights: one early, one late, one cancelled without an aircraft, one from another airport."""
    return pd.DataFrame(
        {
            "year": 2013,
            "month": 1,
            "day": [1, 1, 1, 2],
            "dep_time": [517.0, 600.0, None, 630.0],
            "sched_dep_time": [515, 530, 545, 630],
            "dep_delay": [2.0, 30.0, None, 0.0],
            "arr_delay": [-5.0, 20.0, None, 15.0],
            "carrier": ["UA", "AA", "UA", "B6"],
            "flight": [1, 2, 1, 3],
            "tailnum": ["N1", "N2", None, "N1"],
            "origin": ["EWR", "EWR", "EWR", "JFK"],
        }
    )


def test_parsed_flights_equal_the_sent_ones(some_flights: pd.DataFrame) -> None:
    parsed = parse(bodies(some_flights))

    assert parsed[KEY].equals(some_flights[KEY])
    assert missing_and_surplus(some_flights, parsed) == (0, 0)
    assert by_airport(parsed) == by_airport(some_flights)


def test_events_go_by_key_to_the_partition_that_a_hub_chooses_and_without_one_to_all() -> None:
    assert partitions_of(["N1", "N2", "N1"], 8) == [partition_index(key, 8) for key in ("N1", "N2", "N1")]
    assert set(partitions_of([None] * 8, 8)) == set(range(8))


def test_a_flight_without_an_aircraft_has_no_key(some_flights: pd.DataFrame) -> None:
    assert keys(some_flights) == ["N1", "N2", None, "N1"]


@pytest.mark.parametrize(
    ("rows", "missing", "surplus"),
    [([0, 1, 2, 3], 0, 0), ([3, 1, 0], 1, 0), ([0, 1, 1, 1, 2, 3], 0, 2), ([0, 0], 3, 1)],
    ids=["all", "one missing", "one three times", "both"],
)
def test_missing_and_surplus_flights_are_counted(
    some_flights: pd.DataFrame, rows: list[int], missing: int, surplus: int
) -> None:
    assert missing_and_surplus(some_flights, some_flights.iloc[rows]) == (missing, surplus)


def test_a_flight_that_was_never_sent_is_surplus(some_flights: pd.DataFrame) -> None:
    assert missing_and_surplus(some_flights.iloc[:3], some_flights) == (0, 1)


def test_delays_by_airport(some_flights: pd.DataFrame) -> None:
    assert by_airport(some_flights) == {
        "EWR": Delays(flights=3, departure=16.0, arrival=7.5, late=0.5, cancelled=1),
        "JFK": Delays(flights=1, departure=0.0, arrival=15.0, late=0.0, cancelled=0),
    }


def test_the_data_are_read_without_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new environment of Python 3.12 has none, and newer ones of it have no pkg_resources."""
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    flights = load()
    assert len(flights) == 336_776
    assert set(KEY) < set(flights.columns)
