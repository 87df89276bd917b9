"""The history of a group: a Delta table of its own, beside the lease table, to which rows are appended."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.stores.base import REQUEST_TIMEOUT
from spark_ehbalance.stores.delta.folder import BACKEND_ERRORS, Folder
from spark_ehbalance.stores.delta.log import actions_of, creation, lines
from spark_ehbalance.stores.delta.names import commit_file
from spark_ehbalance.stores.delta.table_format import HISTORY_SCHEMA, rows_of, to_ms, to_time
from spark_ehbalance.stores.delta.version import read_rows, rows_in

#: Appends from one checkpoint of the history's log to the next: whoever opens it reads the log files since.
_CHECKPOINT_INTERVAL = 20

#: Hours for which a file is kept that was joined with others: a reader may be in the middle of it.
_KEPT_HOURS = 1

#: Calls of `follow` from one check whether the log is still there to the next.
_LOOKS_PER_CHECK = 10

#: By its name the table is known as ours, whatever its columns are.
_NAME = "ehbalance lease history"

#: What somebody has set to keep replaced files for longer.
_RETENTION = "delta.deletedFileRetentionDuration"

#: Bytes that a file of the history may hold: ten million changes.
_LARGEST = 1 << 30

_REMEDY = "the history of the lease table belongs there, so choose another leaseTable, or move them away"


class History:
    """The history of the lease table at `location`. All methods raise `StoreUnavailableError`."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._folder = Folder(location.rstrip("/") + "_history", options, largest=_LARGEST)
        self._table: DeltaTable | None = None  # as of the last append
        self._tag: str | None = None  # of that version's log file
        self._until = math.inf  # when it can no longer be used
        self._followed: tuple[int, str] | None = None  # the version that `follow` has come to, and its log file's tag
        self._looks = 0

    @property
    def requests(self) -> Counter[str]:
        """As `Folder.requests`."""
        return self._folder.requests

    def append(self, changes: Sequence[OwnershipChange]) -> None:
        """Append `changes`, which makes the table if it is missing."""
        rows = [asdict(change) | {"at": to_time(change.at_ms)} for change in changes]
        table = pa.table({name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names}, schema=HISTORY_SCHEMA)
        with self._folder.errors("written"):
            held, self._table = self._held(), None
            if held is not None:
                try:
                    self._append(held, table)
                except DeltaError:  # others have done more than append since it was opened
                    held = None
            if held is None:
                held = self._opened()
                self._append(held, table)
            self._table, self._tag = held, self._folder.tag(commit_file(held.version()))
            if held.version() % _CHECKPOINT_INTERVAL == 0:
                held.create_checkpoint()

    def check(self) -> None:
        """Raise `StoreFormatError` if something else than the history is in its place. One that is damaged or out of
        reach hinders no lease."""
        with contextlib.suppress(*BACKEND_ERRORS, StoreUnavailableError):
            if self._folder.is_table():
                self._check_columns(self._folder.open_table())
            else:
                self._folder.check_unused(_REMEDY)

    def _check_columns(self, table: DeltaTable) -> None:
        columns = {field.name for field in table.schema().fields}
        if table.metadata().name != _NAME or not columns >= {*HISTORY_SCHEMA.names}:
            raise StoreFormatError(f"{self._folder.uri} is another Delta table. Nothing was changed there: {_REMEDY}")

    def _held(self) -> DeltaTable | None:
        """The table as of the last append, unless another one has taken its place or its token ends: it need not be
        opened, for which delta-rs reads the log since the last checkpoint, two requests a file."""
        table = self._table if time.time() < self._until - REQUEST_TIMEOUT else None
        same = table is not None and self._folder.tag(commit_file(table.version())) == self._tag is not None
        return table if same else None

    def _opened(self) -> DeltaTable:
        """The table, which is made if it is missing. Raises `StoreUnavailableError` if it is somebody else's."""
        try:
            if not self._folder.is_table():
                self._folder.check_unused(_REMEDY)
                self._create()
            table = self._folder.open_table()
            self._check_columns(table)
        except StoreFormatError as error:
            raise StoreUnavailableError(str(error)) from None
        self._until = self._folder.opened_until
        return table

    def _append(self, table: DeltaTable, rows: pa.Table) -> None:
        self._folder.count("delta-rs")
        write_deltalake(table, rows, mode="append", schema_mode="merge")

    def _create(self) -> None:
        schema, at_ms = Schema.from_arrow(HISTORY_SCHEMA).to_json(), time.time_ns() // 1_000_000
        self._folder.make()
        with contextlib.suppress(FileExistsError):  # another member was faster
            self._folder.create(commit_file(0), lines(creation(_NAME, "", schema, {}, at_ms)))

    def read(self) -> list[OwnershipChange]:
        """All changes, the oldest first."""
        with self._folder.errors("read"):
            return self._written_since(0)

    def follow(self, since_ms: int) -> list[OwnershipChange]:
        """What was appended since the last call, by way of the log files since then, of which there are seldom any. The
        first call, and one after which these are not enough, returns all that was written at `since_ms` or later."""
        with self._folder.errors("read"):
            if self._followed is not None and self._is_followed(self._followed):
                with contextlib.suppress(FileNotFoundError, ValueError):  # tidied away, or no longer only appended to
                    return self._appended(self._followed)
            self._followed = None
            return self._written_since(since_ms)

    def _is_followed(self, followed: tuple[int, str]) -> bool:
        """Whether the log that was followed is still there. Asked in each tenth call: on a storage it is a request."""
        self._looks += 1
        remembered = self._looks % _LOOKS_PER_CHECK and not self._folder.is_local
        return bool(remembered) or self._folder.tag(commit_file(followed[0])) == followed[1]

    def _appended(self, followed: tuple[int, str]) -> list[OwnershipChange]:
        names = list[str]()
        with contextlib.suppress(FileNotFoundError):
            for version in itertools.count(followed[0] + 1):
                content, tag = self._folder.read_tagged(commit_file(version))
                names += _appended_files(actions_of(content))
                followed = version, tag
        rows = rows_in(self._folder, names, HISTORY_SCHEMA) if names else None
        self._followed = followed
        return [] if rows is None else _changes(rows)

    def _written_since(self, since_ms: int) -> list[OwnershipChange]:
        if not self._folder.is_table():
            return []
        table = self._folder.open_table()
        rows = read_rows(table, self._folder, HISTORY_SCHEMA, since_ms)
        self._followed = table.version(), self._folder.tag(commit_file(table.version())) or ""
        return _changes(rows)

    def compact(self) -> None:
        """Join the many small files into few, and remove those that the log says were replaced a while ago."""
        with self._folder.errors("maintained"):
            if self._folder.is_table():
                table = self._opened()
                table.optimize.compact()
                hours = None if _RETENTION in table.metadata().configuration else _KEPT_HOURS
                table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)


def _changes(rows: pa.Table) -> list[OwnershipChange]:
    """Without rows that make no sense, as others may have written."""
    changes = [OwnershipChange(at_ms=to_ms(row.pop("at")), **row) for row in rows_of(rows) if _makes_sense(row)]
    return sorted(changes, key=lambda change: (change.at_ms, change.epoch or 0))


def _makes_sense(row: Mapping[str, Any]) -> bool:
    return row["event"] is not None and (row["partition"] is None) == (row["epoch"] is None)


def _appended_files(actions: Sequence[dict[str, Any]]) -> list[str]:
    """The files whose rows a commit has appended. Raises `ValueError` if it did more."""
    files = [each[kind] | {"kind": kind} for each in actions for kind in each if kind in ("add", "remove")]
    changed = [file for file in files if file["dataChange"]]  # the others were joined
    if any(file["kind"] == "remove" or file.get("deletionVector") for file in changed):
        raise ValueError("rows were removed")
    return [unquote(file["path"]) for file in changed]
