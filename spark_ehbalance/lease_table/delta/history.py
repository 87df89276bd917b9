"""The history of a group: an append-only Delta table next to the lease table."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from spark_ehbalance.clock import now_ms
from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT
from spark_ehbalance.lease_table.delta import log
from spark_ehbalance.lease_table.delta.folder import BACKEND_ERRORS, Folder, file_names
from spark_ehbalance.lease_table.delta.names import commit_file
from spark_ehbalance.lease_table.delta.table_format import TIME

HISTORY_SCHEMA = pa.schema(
    [
        ("at", TIME),
        ("partition", pa.string()),
        ("event", pa.string()),
        ("owner_before", pa.string()),
        ("owner", pa.string()),
        ("epoch", pa.int64()),
        ("sequence_number", pa.int64()),
        ("by", pa.string()),
        ("why", pa.string()),
    ]
)

#: Number of appends between two checkpoints of the history's log. A reader reads the log files since the last
#: checkpoint.
_CHECKPOINT_INTERVAL = 20

#: Hours for which files replaced by a compaction are kept for readers.
_KEPT_HOURS = 1

#: The Delta table name that identifies a lease history, regardless of its columns.
_NAME = "ehbalance lease history"


class History:
    """The history of the lease table at `location`. All methods raise `StoreUnavailableError`."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._folder = Folder(location.rstrip("/") + "_history", options)
        self._table: DeltaTable | None = None  # as of the last append
        self._tag: str | None = None  # of that version's log file
        self._until = math.inf  # expiry of its token
        # The version last read by `follow`, its log file's tag, and its data files.
        self._followed: tuple[int, str | None, frozenset[str]] = (0, None, frozenset())

    def append(self, changes: Sequence[OwnershipChange]) -> None:
        """Append `changes`. Creates the table if it is missing."""
        rows = [asdict(change) | {"at": 1000 * change.at_ms} for change in changes]
        table = pa.table({name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names}, schema=HISTORY_SCHEMA)
        with self._folder.errors("written"):
            cached, self._table = self._cached(), None
            if cached is not None:
                try:
                    self._append(cached, table)
                except DeltaError:  # since the table was opened, another writer has done more than append
                    cached = None
            if cached is None:
                cached = self._opened()
                self._append(cached, table)
            self._table, self._tag = cached, self._tag_of(cached.version())
            if cached.version() % _CHECKPOINT_INTERVAL == 0:
                cached.create_checkpoint()

    def _check_columns(self, table: DeltaTable) -> None:
        columns = {field.name for field in table.schema().fields}
        if table.metadata().name != _NAME or not columns >= {*HISTORY_SCHEMA.names}:
            problem = "it is a Delta table of another program"
            raise StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=self._folder.uri, problem=problem)

    def _cached(self) -> DeltaTable | None:
        """The table as of the last append; None if it was replaced or its token is about to expire. Opening it again
        would take delta-rs two requests for each log file since the last checkpoint."""
        table = self._table if time.time() < self._until - REQUEST_TIMEOUT else None
        same = table is not None and self._tag_of(table.version()) == self._tag is not None
        return table if same else None

    def _opened(self) -> DeltaTable:
        """Open the table, creating it if it is missing. Raises `StoreUnavailableError` if it is foreign."""
        try:
            if not self._folder.is_table():
                self._folder.check_unused()
                self._create()
            table = self._folder.open_table()
            self._check_columns(table)
        except StoreFormatError as error:
            raise StoreUnavailableError(
                "EHB_LEASE_TABLE_UNAVAILABLE",
                what=f"The history at {self._folder.uri}",
                action="opened",
                reason=error.parameters["problem"],
            ) from None
        _, self._until = self._folder.token
        return table

    def _append(self, table: DeltaTable, rows: pa.Table) -> None:
        try:
            write_deltalake(table, rows, mode="append", schema_mode="merge")
        except BACKEND_ERRORS:
            raise
        except Exception as error:  # delta-rs's error for columns of another type has no class of its own
            raise self._folder.unavailable("written", error) from error

    def _create(self) -> None:
        schema, at_ms = Schema.from_arrow(HISTORY_SCHEMA).to_json(), now_ms()
        self._folder.make()
        with contextlib.suppress(FileExistsError):  # another member was faster
            self._folder.create(commit_file(0), log.creation(log.metadata(_NAME, "", schema, {}, at_ms)))

    def read(self) -> list[OwnershipChange]:
        """All changes, the oldest first."""
        with self._folder.errors("read"):
            table = self._newest()
            return [] if table is None else self._changes(file_names(table))

    def follow(self, since_ms: int) -> list[OwnershipChange]:
        """The changes in files that were written at `since_ms` or later and that no earlier call has read. After a
        compaction, some changes are returned again."""
        with self._folder.errors("read"):
            version, tag, files = self._followed
            if tag and self._tag_of(version + 1) is None and self._tag_of(version) == tag:
                return []
            table = self._newest()
            if table is None:
                return []
            changes = self._changes(frozenset(file_names(table, since_ms)) - files)
            self._followed = table.version(), self._tag_of(table.version()), frozenset(file_names(table))
            return changes

    def _newest(self) -> DeltaTable | None:
        return self._folder.open_table() if self._folder.is_table() else None

    def _tag_of(self, version: int) -> str | None:
        return self._folder.tag(commit_file(version))

    def _changes(self, files: Iterable[str]) -> list[OwnershipChange]:
        """The changes in `files`, the oldest first."""
        changes = []
        for name in files:
            rows = self._folder.parquet(name, HISTORY_SCHEMA)
            times = rows["at"].combine_chunks().view(pa.int64()).to_pylist()
            for row, at in zip(rows.drop_columns("at").to_pylist(), times, strict=True):
                changes.append(OwnershipChange(at_ms=at // 1000, **row))
        return sorted(changes, key=lambda change: (change.at_ms, change.epoch or 0))

    def compact(self) -> None:
        """Compact small files, and remove files that were replaced more than an hour ago."""
        with self._folder.errors("maintained"):
            if self._folder.is_table():
                table = self._opened()
                table.optimize.compact()
                table.vacuum(retention_hours=_KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
