"""The lease store on a Delta table, read and written by delta-rs: no JVM, no coordinator.

Delta's commit protocol is the compare-and-swap: an overwrite of a `DeltaTable` that is held at version V, with no
commit retries, succeeds only as version V + 1.

The state is one small Parquet file, which is read and written here; delta-rs does the log. Its own reading and writing
go by way of a query engine, take two to three times as long, and leave a file behind for every race that is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from spark_ehbalance.errors import ConflictError, StoreDamagedError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Snapshot
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseTable, Repair
from spark_ehbalance.stores.delta.locations import SCHEMES, check_storage, parse_location
from spark_ehbalance.stores.delta.log import (
    LOG,
    damaged_log,
    file_names,
    found_leases,
    listed,
    log_problem,
    orphans,
    parquet_rows,
    read_file,
)
from spark_ehbalance.stores.delta.recovery import merged, missing
from spark_ehbalance.stores.delta.table_format import (
    HISTORY_SCHEMA,
    SCHEMA,
    conformed,
    description,
    from_table,
    group_of,
    is_described,
    noted_description,
    rows_of,
    to_ms,
    to_table,
    to_time,
)
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.secrets import could_be_secret, names_secret

#: A commit's cost grows with the log since the last checkpoint, by 0.1 ms each time, and a checkpoint costs 5 ms. So 10
#: and 20 cost the same, and with 10, Delta's own default, who comes later has less of the log to read.
CHECKPOINT_INTERVAL = 10

#: Seconds for which old log files are kept for readers that are in the middle of something; who still misses one reads
#: again. A commit's cost grows with their number: on a local disk 1,000 of them double it. Who comes later starts from
#: the last checkpoint, and ownership changes have a history of their own.
_LOG_RETENTION = "interval 3 seconds"

#: How long the log remembers which data files were replaced: longer than `tidy` is ever put off, which removes them.
_FILE_RETENTION = "interval 60 seconds"

#: Files that are removed at once: on a storage account each takes 10 to 30 ms, nearly all of it waiting.
_REMOVALS_AT_ONCE = 16

#: Seconds after which `maintain` removes files that no log knows, such as those of a process killed while writing.
_ORPHAN_AGE = 3600

#: A file may be tidied away between finding the newest version and reading it; then there is a newer one.
_READ_TRIES = 3

#: Features of Delta that change nothing about how a data file is read.
_PLAIN = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})

_COMMIT_TOKEN = "ehbalance.commit"
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaStore(LeaseTable):
    """The lease table at `location`, with delta-rs's options for its storage."""

    schemes = SCHEMES
    parse_location = staticmethod(parse_location)
    check_storage = staticmethod(check_storage)

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, patience: float = REQUEST_TIMEOUT
    ) -> None:
        self._uri = location
        self._patience = patience
        limit = f"{round(patience * 1000)}ms"
        limits = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        self._storage_options = limits | dict(options or {})
        self._table: DeltaTable | None = None
        self._files: Any = None
        self._unused: str | None = None  # a file that a lost race has left
        self._snapshot: Snapshot | None = None
        self._quiet = False  # the last look has found nothing new
        self._kept = ""  # where a repair puts what it takes away

    def __repr__(self) -> str:
        return f"DeltaStore({self._uri!r})"

    @property
    def _history_uri(self) -> str:
        return self._uri.rstrip("/") + "_history"

    def exists(self) -> bool:
        try:
            return DeltaTable.is_deltatable(self._uri, storage_options=self._storage_options)
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("reached", error) from error

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        if not self.exists():
            try:
                self._create(group, content)
            except (OSError, DeltaError, ValueError) as error:
                if not self.exists():  # otherwise somebody else was faster, which is as good
                    raise self._unavailable("created", error) from error
        found = self.read().group
        if found != group:
            raise StoreFormatError(f"the lease table at {self._uri} belongs to {found}, not to {group}")

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
            "storage_options": self._storage_options,
            # With retries a creator that lost the race would commit its metadata over the winner's.
            "commit_properties": CommitProperties(max_commit_retries=0),
        }
        if content is None:
            DeltaTable.create(self._uri, schema=Schema.from_arrow(SCHEMA), **settings)
        else:  # in one commit: half a table would be taken for one that has lost its partitions
            write_deltalake(self._uri, to_table(content), **settings)

    def read(self) -> Snapshot:
        began = time.monotonic()
        for _ in range(_READ_TRIES - 1):
            try:
                return self._read()
            except StoreUnavailableError:
                if time.monotonic() - began > self._patience / 2:  # a silent storage, not a race
                    raise
        return self._read()

    def _read(self) -> Snapshot:
        known = self._snapshot
        try:
            if known is not None and self._quiet and self._is_newest(known.version):
                return known  # delta-rs would list the log, which costs several times as much
            table = self._update()
            version = table.version()
            self._quiet = known is not None and known.version == version
            if known is not None and version <= known.version and not self._in_log(known.version):
                return self._afresh()  # the log is gone, or another one
            if not self._quiet:
                group = group_of(self._description(table), self._uri)
                if known is None or "://" not in self._uri:  # storage services write a file whole, or not at all
                    self._check(version)
                self._snapshot = self._rows_of(table, group)
        except TableNotFoundError:
            self._forget()
            raise StoreUnavailableError(f"there is no lease table at {self._uri}: `ehbalance init` makes one") from None
        except StoreUnavailableError:
            self._forget()
            raise
        except (OSError, DeltaError, ValueError, KeyError) as error:
            self._forget()
            if damage := self._damaged_log():
                raise self._damaged(damage) from error
            raise self._unavailable("read", error) from error
        assert self._snapshot is not None
        return self._snapshot

    def _description(self, table: DeltaTable) -> str | None:
        text = table.metadata().description
        if is_described(text):
            return str(text)
        if self._snapshot is not None:
            return description(self._snapshot.group)
        try:
            return noted_description(_content(table, self._file_system(), SCHEMA))
        except (OSError, ValueError, OverflowError, pa.ArrowException):
            return text  # of a table that is none of ours

    def _afresh(self) -> Snapshot:
        self._forget()
        return self._read()

    def _check(self, version: int) -> None:
        """delta-rs takes a log file that a crash has left empty, or without its last lines, for a commit of nothing."""
        name = f"_delta_log/{version:020}.json"
        with contextlib.suppress(FileNotFoundError):
            if problem := log_problem(read_file(self._file_system(), name)):
                raise self._damaged(f"{name} {problem}")

    def _damaged_log(self) -> str:
        """The file of the log that cannot be read, and why; empty if there is none."""
        try:
            return next(iter(damaged_log(self._file_system())), "")
        except (OSError, DeltaError, ValueError):
            return ""

    def _rows_of(self, table: DeltaTable, group: Group) -> Snapshot:
        names = file_names(table)
        try:
            return from_table(_content(table, self._file_system(), SCHEMA), group, table.version())
        except FileNotFoundError as error:
            there = {name for name, _ in listed(self._file_system(), "")}
            gone = [name for name in names if name not in there] or names
            raise self._damaged(f"{gone[0]} is missing") from error
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise self._damaged(f"{', '.join(names[:3]) or 'its data'}: {_one_line(error)}") from error

    def _damaged(self, what: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"the lease table at {self._uri} is damaged: {what}. Queries that run read on what they own, and "
            f"`ehbalance maintain --repair {self._uri}` mends it",
            what,
        )

    def _update(self) -> DeltaTable:
        if self._table is None:
            self._table = DeltaTable(self._uri, storage_options=self._storage_options)
        else:
            self._table.update_incremental()
        return self._table

    def _is_newest(self, version: int) -> bool:
        return not self._in_log(version + 1) and self._in_log(version)

    def _in_log(self, version: int) -> bool:
        try:
            self._file_system().open_input_file(f"_delta_log/{version:020}.json")
        except FileNotFoundError:
            return False
        return True

    def _file_system(self) -> Any:
        """delta-rs's access to the table's folder. Its public form wraps streams for Arrow, which hands them buffers
        that they do not take."""
        if self._files is None:
            self._files = DeltaStorageHandler(self._uri, self._storage_options)._handler
        return self._files

    def write(self, base: Snapshot, new: Snapshot, *, schema: Schema | None = None) -> Snapshot:
        """As `LeaseStore.write`; with a `schema` the table has that from now on."""
        if self._snapshot is None or self._snapshot.version != base.version:
            raise ConflictError(f"version {base.version} of {self._uri} is not the one that was read last")
        try:
            table = self._table
            if table is None or table.version() != base.version:
                table = self._update()  # a transaction leaves the table at the version before it
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("read", error) from error
        if table.version() != base.version:
            raise ConflictError(f"somebody else has written version {base.version + 1} of {self._uri}")
        name, token = self._unused or f"{uuid.uuid4()}.parquet", uuid.uuid4().hex
        self._unused = None
        try:
            rows = to_table(new)
            size = self._put(name, rows)
            stats = json.dumps({"numRecords": rows.num_rows})
            table.create_write_transaction(
                [AddAction(name, size, {}, time.time_ns() // 1_000_000, data_change=True, stats=stats)],
                mode="overwrite",
                schema=schema or table.schema(),
                commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={_COMMIT_TOKEN: token}),
                post_commithook_properties=_HOOKS,
            )
        except (OSError, DeltaError, ValueError) as error:
            try:
                self._settle(base, token, error)
            except ConflictError:
                self._unused = name  # by any commit: the next attempt writes over it
                raise
        self._snapshot = new.written_as(base.version + 1)
        return self._snapshot

    def _put(self, name: str, rows: pa.Table) -> int:
        """Write `rows` as a file; returns its size in bytes."""
        buffer = pa.BufferOutputStream()
        # None of what makes Parquet good at large tables: half the time, and fewer bytes.
        pq.write_table(rows, buffer, compression="snappy", use_dictionary=False, write_statistics=False)
        data = buffer.getvalue().to_pybytes()
        stream = self._file_system().open_output_stream(name)
        stream.write(data)
        stream.close()
        return len(data)

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        rows = [asdict(change) | {"at": to_time(change.at_ms)} for change in changes]
        table = pa.table({name: [row[name] for row in rows] for name in HISTORY_SCHEMA.names}, schema=HISTORY_SCHEMA)
        try:
            # Appends do not contradict each other, so that here the path form is right.
            write_deltalake(
                self._history_uri, table, mode="append", schema_mode="merge", storage_options=self._storage_options
            )
        except (OSError, DeltaError, ValueError) as error:
            raise StoreUnavailableError(f"{self._history_uri} could not be written: {self._said(error)}") from error

    def history(self) -> list[OwnershipChange]:
        try:
            if not DeltaTable.is_deltatable(self._history_uri, storage_options=self._storage_options):
                return []
            table = DeltaTable(self._history_uri, storage_options=self._storage_options)
            files = DeltaStorageHandler(self._history_uri, self._storage_options)._handler
            rows = rows_of(_content(table, files, HISTORY_SCHEMA))
        except (OSError, DeltaError, ValueError) as error:
            raise StoreUnavailableError(f"{self._history_uri} could not be read: {self._said(error)}") from error
        changes = [OwnershipChange(at_ms=to_ms(row.pop("at")), **row) for row in rows]
        return sorted(changes, key=lambda change: (change.at_ms, change.epoch or 0))

    def tidy(self) -> None:
        try:
            table = DeltaTable(self._uri, storage_options=self._storage_options)
            # Vacuum would also write two commits, and remove nothing where it loses the race for the first.
            replaced = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
            self._remove_all(replaced)
            table.cleanup_metadata()
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("tidied up", error) from error

    def _remove_all(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_REMOVALS_AT_ONCE) as pool:
            list(pool.map(self._remove, names))

    def _remove(self, file: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another leader was faster
            self._file_system().delete_file(file)

    def maintain(self) -> None:
        self.tidy()
        try:
            table = DeltaTable(self._uri, storage_options=self._storage_options)
            there = {field.name for field in table.schema().fields}
            if missing := [field for field in Schema.from_arrow(SCHEMA).fields if field.name not in there]:
                table.alter.add_columns(missing)
            # A full vacuum would remove whatever else is in the folder, and in those below.
            self._remove_all(orphans(self._file_system(), file_names(table), time.time() - _ORPHAN_AGE))
            if DeltaTable.is_deltatable(self._history_uri, storage_options=self._storage_options):
                history = DeltaTable(self._history_uri, storage_options=self._storage_options)
                history.optimize.compact()
                history.vacuum(retention_hours=_ORPHAN_AGE // 3600, dry_run=False, enforce_retention_duration=False)
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("maintained", error) from error

    def repair(self) -> Repair:
        """As `LeaseTable.repair`: takes away the log files that cannot be read, with all that follow them, and writes
        the latest state that the data files in the folder hold."""
        self._kept = f"{self._uri}_damaged/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
        try:
            return self._put_back(self.read())
        except StoreDamagedError as damage:
            problem = damage.problem
        try:
            return self._rewritten(problem)
        except StoreUnavailableError:
            raise
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("mended", error) from error
        finally:
            self._forget()

    def _put_back(self, snapshot: Snapshot) -> Repair:
        """The partitions that a table which can be read has lost."""
        lost = missing(snapshot.leases, found_leases(self._file_system())[0])
        if not lost:
            return Repair((), snapshot.leases)
        self._keep(file_names(self._update()), self._kept)
        leases = MappingProxyType({**snapshot.leases, **lost})
        self.write(snapshot, replace(snapshot, leases=leases))
        return Repair(tuple(f"partition {p} is missing" for p in lost), leases, self._kept)

    def _rewritten(self, problem: str) -> Repair:
        """The table with the latest leases that can be found, and no members, who join again by themselves."""
        files = self._file_system()
        cut = self._take_log_away(files)
        try:
            table = DeltaTable(self._uri, storage_options=self._storage_options)
        except (OSError, DeltaError) as error:
            raise self._hopeless() from error
        found, unread = found_leases(files)
        there, names = {name for name, _ in listed(files, "")}, file_names(table)
        # What was in a commit whose log is lost is in a data file, which was written before.
        all_read = not (unread & there if cut else {name for name in names if name in unread or name not in there})
        leases = MappingProxyType(merged(found, all_read=all_read))
        if not leases:
            raise self._hopeless()
        self._keep([name for name in names if name in there], self._kept)
        group = group_of(self._description(table), self._uri)
        self._table, self._snapshot = table, Snapshot(group, table.version(), leases)
        self.write(self._snapshot, self._snapshot, schema=Schema.from_arrow(SCHEMA))
        return Repair((problem,), leases, self._kept)

    def _hopeless(self) -> StoreDamagedError:
        return StoreDamagedError(
            f"the lease table at {self._uri} is damaged, and nothing sound is left of it: move its folder away and "
            f"make one of the queries' own checkpoints with `ehbalance init {self._uri} --from-checkpoint DIR`",
            "nothing sound is left",
        )

    def _take_log_away(self, files: Any) -> bool:
        """Move the files of the log that cannot be read, and all of later versions, which need them. Whether commits
        were among them."""
        bad = {each.partition(" ")[0].removeprefix(f"{LOG}/") for each in damaged_log(files)}
        first = min((name[:20] for name in bad if name.endswith(".json")), default="~")
        log = [name for name, _ in listed(files, LOG)]
        away = [name for name in log if name in bad or (name[:20].isdigit() and name[:20] >= first)]
        if away:
            away += [name for name in log if name == "_last_checkpoint" and name not in away]
        paths = [f"{LOG}/{name}" for name in away]
        self._keep(paths, self._kept)
        for path in paths:
            files.delete_file(path)
        return first != "~"

    def _keep(self, names: Sequence[str], folder: str) -> None:
        """Copy files of the table to `folder`, which is beside it."""
        if "://" not in folder:
            os.makedirs(folder, exist_ok=True)
        to: Any = DeltaStorageHandler(folder, self._storage_options)._handler
        for name in names:
            stream = to.open_output_stream(name)
            stream.write(read_file(self._file_system(), name))
            stream.close()

    def close(self) -> None:
        if self._unused is not None:
            with contextlib.suppress(OSError, DeltaError):
                self._remove(self._unused)
            self._unused = None
        self._forget()

    def _settle(self, base: Snapshot, token: str, error: Exception) -> None:
        """After a failed write: return if it was written after all, else raise what it really was."""
        since = self.read().version - base.version
        if since <= 0:
            raise self._unavailable("written", error) from error
        assert self._table is not None
        try:
            commits = self._table.history(since)
        except (OSError, DeltaError, ValueError) as unknown:
            raise self._unavailable("read after a failed write", unknown) from error
        if not any(entry.get(_COMMIT_TOKEN) == token for entry in commits):
            raise ConflictError(f"somebody else has written version {base.version + 1} of {self._uri}") from error

    def _forget(self) -> None:
        """Drop what is held, so that the next read opens the table afresh."""
        self._table = None
        self._snapshot = None

    def _said(self, error: Exception) -> str:
        """What delta-rs says on one line, which may be a value that it does not understand."""
        if any(value in str(error) for name, value in self._storage_options.items() if _hidden(name, value)):
            error.args = ("it does not understand a storage option that may hold a secret",)  # in tracebacks as well
        return _one_line(error)

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(f"the lease table at {self._uri} could not be {what}: {self._said(error)}")


def _content(table: DeltaTable, files: Any, schema: pa.Schema) -> pa.Table:
    """The rows of `table` in the columns of `schema`, read by way of `files`, delta-rs's access to its folder.

    Arrow's own readers start threads, which end a process that exits soon after by an abort, one time in six when busy.
    """
    protocol = table.protocol()
    if protocol.min_reader_version == 2 or set(protocol.reader_features or ()) - _PLAIN:
        raise ValueError("it uses features of Delta that only a whole engine reads, such as deletion vectors")
    parts = [conformed(parquet_rows(files, name), schema) for name in file_names(table)]
    return pa.concat_tables([schema.empty_table(), *parts])


def _hidden(name: str, value: str) -> bool:
    return bool(value) and (names_secret(name) or could_be_secret(value))


def _one_line(error: Exception) -> str:
    """delta-rs's error text on one line, its causes included, without queries of addresses: they may hold a token."""
    text = " ".join(re.sub(r"\x1b\[\d*m|[↳│]", "", str(error)).split()) or type(error).__name__
    return re.sub(r"\?\S*=\S*", "?…", text)[:500]
