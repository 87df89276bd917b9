"""The demo's verdict: whether the Delta table contains each flight that was sent once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Column, Table

from .flights import Delays, by_airport, missing_and_surplus, parse


@dataclass(frozen=True)
class Verdict:
    """The comparison with the hub (by partition and sequence number) and with the data set (by flight)."""

    expected: int
    rows: int
    missing_events: int
    duplicate_events: int
    missing_flights: int
    duplicate_flights: int
    twice: list[str]  # the duplicates, as ranges of sequence numbers per partition
    wrong_keys: int  # events whose partitionKey is not their flight's tail number
    airports: dict[str, Delays]
    airports_expected: dict[str, Delays]

    @property
    def missing(self) -> int:
        """The larger of the two counts."""
        return max(self.missing_events, self.missing_flights)

    @property
    def duplicates(self) -> int:
        """The larger of the two counts."""
        return max(self.duplicate_events, self.duplicate_flights)

    @property
    def complete(self) -> bool:
        """Whether every event is there once, and unchanged."""
        unchanged = not self.wrong_keys and self.airports == self.airports_expected
        return unchanged and not self.missing and not self.duplicates


def judge(table: str, ends: Sequence[int], flights: pd.DataFrame) -> Verdict:
    """Compare the Delta table with the hub, whose partitions have `ends` events, and with the data set."""
    columns = ["partition", "sequenceNumber", "partitionKey", "body"]
    rows = DeltaTable(table).to_pyarrow_table(columns=columns).to_pandas()
    again = rows.duplicated(["partition", "sequenceNumber"])
    distinct = rows[~again]
    sent = distinct["sequenceNumber"].between(0, distinct["partition"].astype(int).map(dict(enumerate(ends))) - 1)
    found = parse(rows["body"])
    missing_flights, duplicate_flights = missing_and_surplus(flights, found)
    tails = found["tailnum"].to_numpy()
    keys = rows["partitionKey"].to_numpy()
    return Verdict(
        expected=len(flights),
        rows=len(rows),
        missing_events=sum(ends) - int(sent.sum()),
        duplicate_events=int(again.sum()),
        missing_flights=missing_flights,
        duplicate_flights=duplicate_flights,
        twice=_ranges(rows[again]),
        wrong_keys=int(((tails != keys) & ~(pd.isna(tails) & pd.isna(keys))).sum()),
        airports=by_airport(found.loc[distinct.index]),
        airports_expected=by_airport(flights),
    )


def _ranges(events: pd.DataFrame) -> list[str]:
    """Events as runs of consecutive sequence numbers per partition."""
    ordered = events.drop_duplicates(["partition", "sequenceNumber"]).sort_values(["partition", "sequenceNumber"])
    new_run = (ordered["sequenceNumber"].diff() != 1) | (ordered["partition"] != ordered["partition"].shift())
    runs = ordered.groupby([ordered["partition"], new_run.cumsum()])["sequenceNumber"].agg(["min", "max"])
    return [f"partition {partition}: {first} to {last}" for (partition, _), first, last in runs.itertuples()]


def show(verdict: Verdict, console: Console) -> None:
    """Print the tables."""
    numbers = ("flights", "departure delay", "arrival delay", "over 15 min late", "cancelled", "as in data set")
    airports = _table("Flights of 2013 by airport, read from the Delta table", "airport", *numbers)
    for airport, delays in verdict.airports.items():
        airports.add_row(
            airport,
            f"{delays.flights:,}",
            f"{delays.departure:.2f} min",
            f"{delays.arrival:.2f} min",
            f"{delays.late:.1%}",
            f"{delays.cancelled:,}",
            "yes" if verdict.airports_expected.get(airport) == delays else "[red]NO[/red]",
        )
    counts = _table(f"{verdict.rows:,} rows for {verdict.expected:,} flights", "counted by", "missing", "duplicates")
    counts.min_width = 70
    counts.add_row("partition, sequenceNumber", f"{verdict.missing_events:,}", f"{verdict.duplicate_events:,}")
    counts.add_row("flight", f"{verdict.missing_flights:,}", f"{verdict.duplicate_flights:,}")
    console.print(airports, counts)
    if verdict.twice:
        console.print(f"More than once in the table: {'; '.join(verdict.twice)}", highlight=False, soft_wrap=True)
    if verdict.wrong_keys:
        console.print(f"{verdict.wrong_keys:,} events have a partitionKey that is not their tail number")


def _table(title: str, first: str, *numbers: str) -> Table:
    return Table(first, *(Column(name, justify="right") for name in numbers), title=title, title_justify="left")
