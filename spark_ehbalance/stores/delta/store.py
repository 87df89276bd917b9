"""The compare-and-swap on a Delta table.

Delta's commit protocol is the compare-and-swap: an overwrite of a `DeltaTable` that is held at version V, without
commit retries, succeeds only as version V + 1.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from spark_ehbalance.errors import ConflictError, StoreDamagedError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseTable, Repair
from spark_ehbalance.stores.delta import maintenance, repair
from spark_ehbalance.stores.delta.folder import BACKEND_ERRORS, Folder
from spark_ehbalance.stores.delta.history import History
from spark_ehbalance.stores.delta.locations import SCHEMES, check_storage, parse_location
from spark_ehbalance.stores.delta.log import commit_file, log_problems
from spark_ehbalance.stores.delta.table_format import SCHEMA, description, to_table
from spark_ehbalance.stores.delta.version import (
    COMMIT_TOKEN,
    check_commit,
    damaged,
    read_group,
    read_snapshot,
    write_snapshot,
)
from spark_ehbalance.values.group import Group

#: Commits from one checkpoint of the log to the next. A commit's cost grows by 0.1 ms with each commit since the last
#: checkpoint, and a checkpoint costs 5 ms: 10 and 20 cost the same, and with 10, Delta's default, a new reader has less
#: of the log to read.
CHECKPOINT_INTERVAL = 10

#: How long log files are kept that a checkpoint has replaced, for readers that are in the middle of them; who still
#: misses one reads again. A commit's cost grows with their number: on a local disk 1,000 of them double it.
_LOG_RETENTION = "interval 3 seconds"

#: How long the log remembers which data files were replaced: longer than two calls of `tidy`, which removes them, are
#: apart.
_FILE_RETENTION = "interval 60 seconds"

#: Attempts of a read: a file may be tidied away between finding the newest version and reading it.
_READ_ATTEMPTS = 3


class DeltaStore(LeaseTable):
    """The lease table at `location`, with delta-rs's options for its storage."""

    schemes = SCHEMES
    parse_location = staticmethod(parse_location)
    check_storage = staticmethod(check_storage)

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, patience: float = REQUEST_TIMEOUT
    ) -> None:
        limit = f"{round(patience * 1000)}ms"
        limits = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        self._folder = Folder(location, limits | dict(options or {}), f"the lease table at {location}")
        self._history = History(location, self._folder.options)
        self._patience = patience
        self._table: DeltaTable | None = None
        self._snapshot: Snapshot | None = None
        self._unchanged = False  # the last read has found nothing new
        self._leftover: str | None = None  # the data file of a lost race, which the next attempt writes over

    def __repr__(self) -> str:
        return f"DeltaStore({self._folder.uri!r})"

    def exists(self) -> bool:
        with self._folder.errors("reached"):
            return self._folder.is_table()

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        if not self.exists():
            try:
                with self._folder.errors("created"):
                    self._create(group, content)
            except StoreUnavailableError:
                if not self.exists():  # otherwise another creator was faster, which is as good
                    raise
        found = self.read().group
        if found != group:
            raise StoreFormatError(f"the lease table at {self._folder.uri} belongs to {found}, not to {group}")

    def _create(self, group: Group, content: Snapshot | None) -> None:
        settings: dict[str, Any] = {
            "mode": "error",
            "name": "ehbalance lease table",
            "description": description(group),
            "configuration": {
                "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                "delta.logRetentionDuration": _LOG_RETENTION,
                "delta.deletedFileRetentionDuration": _FILE_RETENTION,
            },
            "storage_options": self._folder.options,
            # With retries a creator that lost the race would commit its metadata over the winner's.
            "commit_properties": CommitProperties(max_commit_retries=0),
        }
        if content is None:
            DeltaTable.create(self._folder.uri, schema=Schema.from_arrow(SCHEMA), **settings)
        else:  # in one commit: half a table would be taken for one that has lost its partitions
            write_deltalake(self._folder.uri, to_table(content), **settings)

    # --- read --------------------------------------------------------------------------------------------------

    def read(self) -> Snapshot:
        began = time.monotonic()
        for _ in range(_READ_ATTEMPTS - 1):
            try:
                return self._read()
            except StoreUnavailableError:
                if time.monotonic() - began > self._patience / 2:  # the storage does not answer: it is no race
                    raise
        return self._read()

    def _read(self) -> Snapshot:
        try:
            return self._newest()
        except StoreUnavailableError:
            self._forget()
            raise
        except BACKEND_ERRORS as error:
            self._forget()
            raise self._damage() or self._folder.unavailable("read", error) from error

    def _newest(self) -> Snapshot:
        known = self._snapshot
        if known is not None and self._unchanged and self._is_newest(known.version):
            return known  # delta-rs would list the log, which costs several times as much
        table = self._updated_table()
        version = table.version()
        self._unchanged = known is not None and known.version == version
        if known is not None and version <= known.version and not self._in_log(known.version):
            self._forget()  # the log was removed, or replaced by another one
            return self._newest()
        if known is None or not self._unchanged:
            group = read_group(table, self._folder, known.group if known else None)
            if known is None or "://" not in self._folder.uri:  # storage services write a file whole, or not at all
                check_commit(self._folder, version)
            known = self._snapshot = read_snapshot(table, self._folder, group)
        return known

    def _is_newest(self, version: int) -> bool:
        return not self._in_log(version + 1) and self._in_log(version)

    def _in_log(self, version: int) -> bool:
        return self._folder.has(commit_file(version))

    def _updated_table(self) -> DeltaTable:
        if self._table is None:
            self._table = self._folder.open_table()
        else:
            self._table.update_incremental()
        return self._table

    def _damage(self) -> StoreDamagedError | None:
        """The error that names the file of the log that cannot be read, if there is one."""
        with contextlib.suppress(*BACKEND_ERRORS):
            for path, problem in log_problems(self._folder):
                return damaged(self._folder, f"{path} {problem}")
        return None

    def _forget(self) -> None:
        """Drop what is held, so that the next read opens the table again."""
        self._table = None
        self._snapshot = None

    # --- write -------------------------------------------------------------------------------------------------

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        return self._write(base, new)

    def _write(self, base: Snapshot, new: Snapshot, schema: Schema | None = None) -> Snapshot:
        table = self._table_at(base)
        name, token = self._leftover or f"{uuid.uuid4()}.parquet", uuid.uuid4().hex
        self._leftover = None
        try:
            with self._folder.errors("written"):
                write_snapshot(table, self._folder, new, name=name, token=token, schema=schema)
        except StoreUnavailableError as error:
            try:
                self._check_landed(base, token, error)
            except ConflictError:
                self._leftover = name  # no commit names it
                raise
        self._snapshot = new.written_as(base.version + 1)
        return self._snapshot

    def _table_at(self, base: Snapshot) -> DeltaTable:
        """The table at the version of `base`. Raises `ConflictError` if that is not the newest one that was read."""
        if self._snapshot is None or self._snapshot.version != base.version:
            raise ConflictError(f"version {base.version} of {self._folder.uri} is not the one that was read last")
        with self._folder.errors("read"):
            table = self._table
            if table is None or table.version() != base.version:
                table = self._updated_table()  # a transaction leaves the table at the version before it
        if table.version() != base.version:
            raise self._conflict(base)
        return table

    def _check_landed(self, base: Snapshot, token: str, error: StoreUnavailableError) -> None:
        """After a failed write: return if the commit is in the log after all, else raise what really happened."""
        since = self.read().version - base.version
        if since <= 0:
            raise error
        assert self._table is not None
        with self._folder.errors("read after a failed write"):
            commits = self._table.history(since)
        if not any(entry.get(COMMIT_TOKEN) == token for entry in commits):
            raise self._conflict(base) from error

    def _conflict(self, base: Snapshot) -> ConflictError:
        return ConflictError(f"somebody else has written version {base.version + 1} of {self._folder.uri}")

    # --- history and upkeep ------------------------------------------------------------------------------------

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        self._history.append(changes)

    def history(self) -> list[OwnershipChange]:
        return self._history.read()

    def tidy(self) -> None:
        with self._folder.errors("tidied up"):
            maintenance.tidy(self._folder)

    def maintain(self) -> None:
        self.tidy()
        with self._folder.errors("maintained"):
            maintenance.add_columns(self._folder)
            maintenance.remove_orphans(self._folder)
        self._history.compact(keep_hours=maintenance.ORPHAN_HOURS)

    def repair(self) -> Repair:
        with self._folder.errors("repaired"):
            try:
                return repair.put_back(self._folder, self.read(), self.write)
            except StoreDamagedError as damage:
                return repair.rewrite(self._folder, damage.problem, self._overwrite)
            finally:
                self._forget()

    def _overwrite(self, table: DeltaTable, state: Snapshot) -> None:
        """Write `state` over a `table` of the same version whose content cannot be read."""
        self._table, self._snapshot = table, state
        self._write(state, state, Schema.from_arrow(SCHEMA))

    def close(self) -> None:
        if self._leftover is not None:
            with contextlib.suppress(*BACKEND_ERRORS):
                self._folder.remove([self._leftover])
            self._leftover = None
        self._forget()
