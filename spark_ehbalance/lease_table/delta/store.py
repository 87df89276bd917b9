"""The compare-and-swap on a Delta table.

A commit writes a data file and then creates the next version's log file, which succeeds only if that file does not
exist, so the first creator wins. This is Delta's commit protocol, so delta-rs and Spark can read the table. A read is
one request for the next version's log file; delta-rs only opens the table, and reads the metadata of versions that
other programs wrote. Such versions must not change rows, because (for example) RESTORE would hide progress.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Metadata, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_ehbalance.clock import monotonic, now_ms
from spark_ehbalance.errors import (
    ConflictError,
    StoreDamagedError,
    StoreFormatError,
    StoreReplacedError,
    StoreUnavailableError,
)
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.lease_table.delta import log, maintenance
from spark_ehbalance.lease_table.delta.folder import BACKEND_ERRORS, Folder, file_names, storage_error_text
from spark_ehbalance.lease_table.delta.history import History
from spark_ehbalance.lease_table.delta.locations import check_storage, parse_location
from spark_ehbalance.lease_table.delta.names import (
    LOG,
    commit_file,
    new_data_file,
    version_of,
)
from spark_ehbalance.lease_table.delta.table_format import SCHEMA, description, encode, from_table, group_of, to_table

#: Maximum number of log files that are read one after another before the log is listed. On a storage account, a listing
#: costs as much as 13 reads and takes as long as two.
_MAX_STEPS = 4

#: Number of reads per check that the log still exists. On a local disk, where a check takes 0.01 ms, every read checks.
_READS_PER_CHECK = 10

#: Attempts per read, because maintenance may remove a file after the newest version was found and before it is read.
_READ_ATTEMPTS = 3

_NAME = "ehbalance lease table"

#: The property with the table's group. Older tables have only the description, which other programs may overwrite.
_GROUP = "ehbalance.group"

#: Maximum number of changed settings named in an error.
_MAX_SHOWN = 3


def _columns(schema: Schema) -> dict[str, object]:
    """The columns without their metadata, such as comments."""
    return {
        f"column {field.name}": field.type.to_json() + " NOT NULL" * (not field.nullable) for field in schema.fields
    }


#: Settings that other programs must not change, besides the properties.
_SETTINGS = {"protocol": [1, 2], "partition columns": [], **_columns(Schema.from_arrow(SCHEMA))}


@dataclass(frozen=True, slots=True)
class _Known:
    """The last version that was read or written: its snapshot, its data file, the table's metadata action, the log
    file's tag and content hash, and the last time at which this version was the newest."""

    snapshot: Snapshot
    file: str | None
    metadata: dict[str, Any]
    tag: str
    content: int
    newest_at: float = 0.0

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def table(self) -> str:
        """The table's id."""
        return str(self.metadata["metaData"]["id"])


class _Check(NamedTuple):
    """The last check that the log exists: the version `known` at that time, the number of `reads` since, and the
    versions `written` since with their tokens."""

    known: _Known | None = None
    reads: int = 0
    written: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _LogFile:
    version: int
    content: bytes
    tag: str


class DeltaStore(LeaseStore):
    """The lease table at `location`, with delta-rs's options for its storage."""

    parse_location = staticmethod(parse_location)
    check_storage = staticmethod(check_storage)

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        patience: float = REQUEST_TIMEOUT,
        group: Group | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock` returns seconds, and must not stop while the process or the machine is suspended."""
        limit = f"{round(patience * 1000)}ms"
        limits = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        self._folder = Folder(location, limits | dict(options or {}), f"The lease table at {location}")
        self._history = History(location, self._folder.options)
        self._patience = patience
        self._clock = clock
        self._known: _Known | None = None
        self._last: _Known | None = None  # the known version before the table was opened again
        self._check = _Check()
        self._winner: _LogFile | None = None  # the log file of another writer that won a race

    def __repr__(self) -> str:
        return f"DeltaStore({self._folder.uri!r})"

    def exists(self) -> bool:
        with self._folder.errors("reached"):
            if self._folder.is_table():
                return True
            try:
                self._folder.check_unused()
            except StoreFormatError:
                if self._folder.is_table():  # another member created it meanwhile
                    return True
                raise
        return False

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        if not self.exists():
            try:
                with self._folder.errors("created"):
                    if around := self._folder.enclosing_table():
                        raise self._foreign(f"it is in the folder of the Delta table {around}, whose VACUUM removes it")
                    self._create(group, content)
            except StoreUnavailableError:
                if not self.exists():  # otherwise another creator was faster
                    raise
        found = self.read().group
        if found != group:
            raise self._foreign(f"it belongs to {found}, not to {group}")

    def _create(self, group: Group, content: Snapshot | None) -> None:
        self._folder.make()
        # One commit, because a partly written table would look like a table that lost its partitions.
        adds = [] if content is None else [self._put(content)]
        self._folder.create(commit_file(0), log.creation(_metadata(group, now_ms()), *adds))

    def _put(self, snapshot: Snapshot) -> dict[str, Any]:
        """Write a data file. Returns the action that adds it."""
        rows, name = to_table(snapshot), new_data_file()
        data = encode(rows)
        self._folder.write(name, data)
        return log.added(name, len(data), rows.num_rows, now_ms())

    # --- read --------------------------------------------------------------------------------------------------

    def read(self) -> Snapshot:
        began, first = time.monotonic(), None
        for _ in range(_READ_ATTEMPTS):
            try:
                return self._read()
            except StoreUnavailableError as error:
                first = first or error
                if time.monotonic() - began > self._patience / 2:  # timed out instead of losing a race
                    break
        assert first is not None
        raise first

    def _read(self) -> Snapshot:
        began = self._clock()
        try:
            with self._folder.errors("read"):
                known = self._known
                if known is None or not self._is_there(known) or (known := self._advanced(known)) is None:
                    known = self._opened()
        except StoreDamagedError:
            self._forget()
            raise
        self._known = self._last = replace(known, newest_at=began)
        return known.snapshot

    def _advanced(self, known: _Known) -> _Known | None:
        """The newest version; None if another program wrote it, so that the table must be opened again."""
        newest = self._newest(known)
        if newest is None:
            return known
        add = self._own_add(newest, known.table)
        if add is None:
            return None
        return self._read_version(newest, add, known.snapshot.group, known.metadata)

    def _opened(self) -> _Known:
        """The newest version, read with delta-rs."""
        self._forget()
        try:
            table = self._folder.open_table()
        except TableNotFoundError:
            raise
        except DeltaError as error:
            missing, later = self._gap()
            if later and self._log_file(missing) is None:  # the listing may have missed a new file
                raise self._replaced(f"{commit_file(missing)} is missing") from error
            raise self._folder.unavailable("opened", error) from error
        version = table.version()
        group, metadata = self._checked_metadata(table)
        self._check_not_rolled_back(version)
        newest = self._retained(version)
        add = self._newest_add(newest, str(table.metadata().id), file_names(table))
        known = self._read_version(newest, add, group, metadata)
        self._check = _Check(known)
        return known

    def _newest_add(self, newest: _LogFile, table: str, files: list[str]) -> dict[str, Any] | None:
        """The `add` of the last commit up to `newest` that changed the data `files`; None if the table has no rows yet.
        Raises `StoreReplacedError` if another program made that commit."""
        file = newest
        while (add := self._own_add(file, table)) is None:
            if operation := log.data_change(file.content, files if file.version else []):
                raise self._replaced(f"version {file.version} is a foreign commit ({operation})")
            if file.version == 0:
                return None
            file = self._retained(file.version - 1)
        return add

    def _retained(self, version: int) -> _LogFile:
        """The log file of `version`. Raises `StoreDamagedError` if it is missing, because the author of the rows is
        then unknown."""
        if (found := self._log_file(version)) is None:
            raise self._damaged(f"{commit_file(version)} is missing")
        return found

    def read_rejected(self) -> Snapshot:
        with self._folder.errors("read"):
            table = self._folder.open_table()
            group = self._group_of(table.metadata())
            (name,) = file_names(table)
            return from_table(self._folder.parquet(name, SCHEMA), group, table.version())

    def _check_not_rolled_back(self, version: int) -> None:
        """Raise `StoreReplacedError` if the known version is no longer part of the log, unless it may have been cleaned
        up."""
        if (last := self._last) is not None:
            found = self._log_file(last.version)
            if hash(found.content) != last.content if found else version < last.version:
                raise self._replaced(f"its version was {last.version} and is now {version}")

    def _checked_metadata(self, table: DeltaTable) -> tuple[Group, dict[str, Any]]:
        """The table's group and metadata. Raises `StoreFormatError` if it is not a lease table, `StoreReplacedError` if
        it is not the same table as before, and `StoreDamagedError` if another program changed its protocol or
        metadata."""
        found, protocol = table.metadata(), table.protocol()
        known_id = self._last.table if self._last is not None else None
        if known_id not in (None, str(found.id)):
            raise self._replaced(f"its id was {known_id} and is now {found.id}")
        group = self._group_of(found)
        features = [*(protocol.reader_features or ()), *(protocol.writer_features or ())]
        settings = {
            "protocol": [protocol.min_reader_version, protocol.min_writer_version, *features],
            "partition columns": found.partition_columns,
            **_columns(table.schema()),
            **{name: value for name, value in found.configuration.items() if name.startswith("delta.")},
        }
        # Properties may be missing: older tables lack some, and UNSET removes others.
        expected = maintenance.PROPERTIES | _SETTINGS
        names = [name for name in settings | _SETTINGS if settings.get(name) != expected.get(name)]
        if names:
            changes = ", ".join(
                f"{name} from {expected.get(name)} to {settings.get(name)}" for name in names[:_MAX_SHOWN]
            )
            raise self._damaged(f"another program changed {changes}")
        schema, created_ms = table.schema().to_json(), found.created_time or 0
        return group, log.metadata(
            found.name, found.description, schema, found.configuration, created_ms, str(found.id)
        )

    def _group_of(self, metadata: Metadata) -> Group:
        group = group_of(metadata.configuration.get(_GROUP, metadata.description), self._folder.uri)
        if group is not None:
            return group
        if self._last is None and metadata.name != _NAME:
            raise self._foreign("it is a Delta table of another program")
        raise self._damaged("another program changed its description")

    def _read_version(
        self, newest: _LogFile, add: dict[str, Any] | None, group: Group, metadata: dict[str, Any]
    ) -> _Known:
        """The version of the log file `newest`, with the rows of the data file that `add` adds. Raises
        `StoreDamagedError`."""
        name, snapshot = None, Snapshot(group, newest.version)
        if add is not None:
            name = add["add"]["path"]
            try:
                snapshot = from_table(self._folder.parquet(name, SCHEMA), group, newest.version)
            except FileNotFoundError as error:
                raise self._damaged(f"{error} is missing") from error
            except (ValueError, OverflowError, pa.ArrowException) as error:
                raise self._damaged(f"{name}: {storage_error_text(error)}") from error
        return _Known(snapshot, name, metadata, newest.tag, hash(newest.content))

    def _is_there(self, known: _Known) -> bool:
        """Whether the log can be read from the known version on.

        It cannot be read if the log was removed or replaced: an older version is then missing, even if members continue
        to write. Nor can it be read if versions may have been cleaned up during a long suspension, because the next
        version may also be missing.
        """
        if self._is_stale(known):
            return False
        self._check = self._check._replace(reads=self._check.reads + 1)
        if not self._folder.is_local and self._check.reads < _READS_PER_CHECK:
            return True
        checked = self._check.known or known
        if self._tag(checked.version) == checked.tag:
            self._check = _Check(known)
            return True
        self._withdraw_strays()
        return False

    def _tag(self, version: int) -> str | None:
        return self._folder.tag(commit_file(version))

    def _withdraw_strays(self) -> None:
        """Remove log files that this handle, since the last check, wrote by mistake to the log of a table that replaced
        this one. They follow a gap in that log, so no reader could open that table."""
        _, later = self._gap()
        for version, token in self._check.written:
            with contextlib.suppress(FileNotFoundError):
                if version in later and log.was_written_by(token, self._folder.read(commit_file(version))):
                    self._folder.remove([commit_file(version)])
        self._check = self._check._replace(written=())

    def _gap(self) -> tuple[int, set[int]]:
        """The first missing version after the checkpoint or the first log file, and the later versions in the log."""
        names = [file.name for file in self._folder.listed(LOG)]
        versions = {version for name in names if (version := version_of(name)) is not None}
        missing = max(log.newest_checkpoint(names), min(versions, default=0)) + 1
        while missing in versions:
            missing += 1
        return missing, {version for version in versions if version > missing}

    def _is_stale(self, known: _Known) -> bool:
        """Whether the log files after the known version may have been cleaned up."""
        return self._clock() - known.newest_at > maintenance.LOG_SECONDS / 2

    def _newest(self, known: _Known) -> _LogFile | None:
        """The log file of the newest version; None if the known version is the newest."""
        version, newest = known.version, None
        for _ in range(_MAX_STEPS):
            found = self._log_file(version + 1)
            if found is None:
                return newest
            version, newest = found.version, found
        later = self._versions_after(version)
        return (self._log_file(later[-1]) or newest) if later else newest

    def _log_file(self, version: int) -> _LogFile | None:
        """The log file of `version`; None if it does not exist."""
        winner = self._winner  # a copy, because a read in another thread may drop it
        if winner is not None and winner.version == version:
            return winner
        with contextlib.suppress(FileNotFoundError):
            return _LogFile(version, *self._folder.read_tagged(commit_file(version)))
        return None

    def _own_add(self, file: _LogFile, table: str) -> dict[str, Any] | None:
        """Like `log.own_add`, but raises `StoreDamagedError`."""
        try:
            return log.own_add(file.content, table)
        except ValueError as problem:
            raise self._damaged(f"{commit_file(file.version)} {problem}") from problem

    def _versions_after(self, version: int) -> list[int]:
        """The later versions with a log file, in order."""
        files = self._folder.listed(LOG, after=commit_file(version).removeprefix(f"{LOG}/"))
        return [found for file in files if (found := version_of(file.name)) is not None]

    def _damaged(self, problem: str) -> StoreDamagedError:
        """The error for a damaged table; `problem` names the file."""
        return StoreDamagedError("EHB_LEASE_TABLE_DAMAGED", location=self._folder.uri, problem=problem)

    def _foreign(self, problem: str) -> StoreFormatError:
        return StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=self._folder.uri, problem=problem)

    def _replaced(self, problem: str) -> StoreReplacedError:
        return StoreReplacedError("EHB_LEASE_TABLE_ROLLED_BACK", location=self._folder.uri, problem=problem)

    def _forget(self) -> None:
        """Drop the known version, so that the next read opens the table again."""
        self._known = self._winner = None

    # --- write -------------------------------------------------------------------------------------------------

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        known = self._known
        if known is None or known.version != base.version:
            raise self._conflict(base.version + 1)
        version, token = base.version + 1, uuid.uuid4().hex
        with self._folder.errors("written"):
            add = self._put(new)
        began = self._clock()
        entry = log.overwrite(base.version, known.table, known.file, add, token)
        tag = self._commit(version, entry, token)
        self._check = self._check._replace(written=(*self._check.written, (version, token)))
        if self._is_stale(known) and not self._is_whole_from(known):
            self._folder.remove([commit_file(version)])
            self._forget()
            raise StoreUnavailableError(
                "EHB_LEASE_TABLE_UNAVAILABLE",
                what=f"The lease table at {self._folder.uri}",
                action="written",
                reason="others wrote to it while this process was suspended, so the outcome of the commit is unknown",
            )
        written = replace(new, version=version)
        file = add["add"]["path"]
        self._known = self._last = _Known(written, file, known.metadata, tag, hash(entry), began)
        return written

    def _is_whole_from(self, known: _Known) -> bool:
        """Whether the log has all versions from the known one to the newest. An interrupted clean-up may leave gaps."""
        versions = self._versions_after(known.version - 1)
        whole = versions == [*range(known.version, known.version + len(versions))] != []
        return whole and self._tag(known.version) == known.tag

    def _commit(self, version: int, entry: bytes, token: str) -> str:
        """Create the log file of `version`. Returns its tag. Raises `ConflictError` if another writer created it, and
        `StoreUnavailableError` if the outcome is unknown: the file may still appear."""
        try:
            return self._folder.create(commit_file(version), entry)
        except BACKEND_ERRORS as error:  # if a response was lost and the request retried, the file may be this handle's
            failure = error
        try:
            found = self._log_file(version)
            if found is not None and log.was_written_by(token, found.content):
                return found.tag
        except BACKEND_ERRORS:
            found = None
        if found is None:
            raise self._folder.unavailable("written", failure) from failure
        self._winner = found
        raise self._conflict(version)

    def _conflict(self, version: int) -> ConflictError:
        return ConflictError("EHB_COMMIT_CONFLICT", version=version, location=self._folder.uri)

    # --- history and maintenance -------------------------------------------------------------------------------

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        self._history.append(changes)

    def history(self) -> list[OwnershipChange]:
        return self._history.read()

    def follow_history(self, since_ms: int) -> list[OwnershipChange]:
        return self._history.follow(since_ms)

    def tidy(self) -> None:
        with self._folder.errors("tidied up"):
            data, files = self._folder.listed(), self._folder.listed(LOG)
            # The version is read after the listings, so listed files that it does not need are obsolete.
            if newest := self._checkpointed():
                maintenance.remove_old_files(self._folder, data, files, *newest)

    def _checkpointed(self) -> tuple[int, str] | None:
        """Write a checkpoint of the newest version. Returns that version and its data file. Writes nothing and returns
        None if the log was replaced or another program wrote the version. Other threads may read and write
        meanwhile."""
        known, checked = self._known, self._check.known
        # Later versions may be commits that this handle wrote to the log of a table that replaced this one.
        if known is None or checked is None or self._tag(checked.version) != checked.tag:
            return None
        newest = self._newest(known) or self._log_file(known.version)
        add = self._own_add(newest, known.table) if newest else None
        if newest is None or add is None:
            return None
        for name, content in log.encode_checkpoint(newest.version, known.metadata, add).items():
            self._folder.write(name, content)
        return newest.version, add["add"]["path"]

    def maintain(self) -> None:
        self.read()
        self.tidy()
        self._history.compact()

    def close(self) -> None:
        self._forget()


def _metadata(group: Group, created_ms: int) -> dict[str, Any]:
    schema, properties = Schema.from_arrow(SCHEMA).to_json(), maintenance.PROPERTIES | {_GROUP: description(group)}
    return log.metadata(_NAME, description(group), schema, properties, created_ms)
