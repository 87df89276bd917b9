"""Makes a history unwritable while the lease table remains writable."""

from __future__ import annotations

import shutil
from pathlib import Path

NOT_RECORDED = "The change was committed but not recorded in the history: "


def make_unwritable(table: Path) -> None:
    """Put a file where the history of the lease table at `table` would be."""
    history = Path(f"{table}_history")
    shutil.rmtree(history, ignore_errors=True)
    history.write_bytes(b"not a table")
