"""What a Delta table holds, read without Spark, which takes longer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import deltalake


def events_in(table: str | Path) -> Counter[tuple[str, int]]:
    """How often the table at this path, which may not exist yet, holds which event."""
    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return Counter()
    rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "sequenceNumber"])
    return Counter(zip(rows["partition"].to_pylist(), rows["sequenceNumber"].to_pylist(), strict=True))
