"""Reads Delta tables without Spark, which is slower."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import deltalake


def events_in(table: str | Path) -> Counter[tuple[str, int]]:
    """The number of rows per event in the table at this path; empty if the table does not exist."""
    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return Counter()
    rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "sequenceNumber"])
    return Counter(zip(rows["partition"].to_pylist(), rows["sequenceNumber"].to_pylist(), strict=True))
