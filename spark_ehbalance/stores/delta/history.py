"""The history of a group: a Delta table of its own, beside the lease table, to which rows are appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from deltalake import write_deltalake

from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.table_format import HISTORY_SCHEMA, rows_of, to_ms, to_time
from spark_ehbalance.stores.delta.version import read_rows


class History:
    """The history of the lease table at `location`. All methods raise `StoreUnavailableError`."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._folder = Folder(location.rstrip("/") + "_history", options)

    def append(self, changes: Sequence[OwnershipChange]) -> None:
        """Append `changes`, which makes the table if it is missing."""
        rows = [asdict(change) | {"at": to_time(change.at_ms)} for change in changes]
        table = pa.table({name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names}, schema=HISTORY_SCHEMA)
        with self._folder.errors("written"):  # appends never conflict: no version is held
            write_deltalake(
                self._folder.uri, table, mode="append", schema_mode="merge", storage_options=self._folder.options
            )

    def read(self) -> list[OwnershipChange]:
        """All changes, the oldest first."""
        with self._folder.errors("read"):
            if not self._folder.is_table():
                return []
            rows = rows_of(read_rows(self._folder.open_table(), self._folder, HISTORY_SCHEMA))
        changes = [OwnershipChange(at_ms=to_ms(row.pop("at")), **row) for row in rows]
        return sorted(changes, key=lambda change: (change.at_ms, change.epoch or 0))

    def compact(self, *, keep_hours: int) -> None:
        """Join the many small files into few, and remove those that were replaced `keep_hours` ago or earlier."""
        with self._folder.errors("maintained"):
            if self._folder.is_table():
                table = self._folder.open_table()
                table.optimize.compact()
                table.vacuum(retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False)
