"""The history of a group: a Delta table of its own, beside the lease table, to which rows are appended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.stores.base import REQUEST_TIMEOUT
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.log import commit_file
from spark_ehbalance.stores.delta.table_format import HISTORY_SCHEMA, rows_of, to_ms, to_time
from spark_ehbalance.stores.delta.version import read_rows

#: Appends from one checkpoint of the history's log to the next: whoever opens it reads the log files since.
_CHECKPOINT_INTERVAL = 20


class History:
    """The history of the lease table at `location`. All methods raise `StoreUnavailableError`."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._folder = Folder(location.rstrip("/") + "_history", options)
        self._table: DeltaTable | None = None  # as of the last append
        self._until = math.inf  # when it can no longer be used

    def append(self, changes: Sequence[OwnershipChange]) -> None:
        """Append `changes`, which makes the table if it is missing."""
        rows = [asdict(change) | {"at": to_time(change.at_ms)} for change in changes]
        table = pa.table({name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names}, schema=HISTORY_SCHEMA)
        with self._folder.errors("written"):
            held, self._table = self._held(), None
            if held is not None:
                try:
                    _append(held, table)
                except DeltaError:  # others have done more than append since it was opened
                    held = None
            if held is None:
                held = self._opened()
                if held is None:
                    _append(self._folder.uri, table, storage_options=self._folder.delta_options())
                    return
                _append(held, table)
            self._table = held
            if held.version() % _CHECKPOINT_INTERVAL == 0:
                held.create_checkpoint()

    def _held(self) -> DeltaTable | None:
        """The table as of the last append, unless another one has taken its place or its token ends: it need not be
        opened, for which delta-rs reads the log since the last checkpoint, two requests a file."""
        table = self._table if time.time() < self._until - REQUEST_TIMEOUT else None
        return table if table and self._folder.tag(commit_file(table.version())) is not None else None

    def _opened(self) -> DeltaTable | None:
        try:
            table = self._folder.open_table()
            self._until = self._folder.opened_until
            return table
        except TableNotFoundError:
            return None

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

    def erase(self) -> None:
        """Remove the table."""
        with self._folder.errors("removed"):
            self._folder.erase()


def _append(table: DeltaTable | str, rows: pa.Table, **options: Any) -> None:
    write_deltalake(table, rows, mode="append", schema_mode="merge", **options)
