"""The compare-and-swap on a Delta table.

A commit is a data file and then the next version's log file, which is created only if there is none: whoever creates it
has won. That is Delta's commit protocol, and all that delta-rs and Spark need to read the table. A look is one request
for the next version's log file.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltalake import Schema
from deltalake.exceptions import DeltaError

from spark_ehbalance.errors import ConflictError, StoreDamagedError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseTable
from spark_ehbalance.stores.delta import maintenance
from spark_ehbalance.stores.delta.features import unsupported
from spark_ehbalance.stores.delta.folder import BACKEND_ERRORS, Folder
from spark_ehbalance.stores.delta.history import History
from spark_ehbalance.stores.delta.locations import beside, check_storage, has_known_scheme, parse_location
from spark_ehbalance.stores.delta.log import (
    Head,
    added,
    creation,
    is_by,
    lines,
    log_problems,
    newest_checkpoint,
    overwrite,
)
from spark_ehbalance.stores.delta.names import (
    LOG,
    commit_file,
    is_data_file,
    is_log_file,
    new_data_file,
    version_of,
)
from spark_ehbalance.stores.delta.table_format import SCHEMA, description, description_in_rows, encode, to_table
from spark_ehbalance.stores.delta.version import (
    Shape,
    check_readable,
    damaged,
    head_of,
    read_snapshot,
    shape_of,
    sound_actions,
)
from spark_ehbalance.values.group import Group

#: Log files that a look reads one after the other, before it lists the log and reads the newest alone: on a storage
#: account a listing costs as much as 13 reads, and takes as long as two.
_MOST_STEPS = 4

#: Looks from one check whether the log is still there to the next. On a local disk, where it costs 0.01 ms, each look
#: checks.
_LOOKS_PER_CHECK = 10

#: Attempts of a read: a file may be tidied away between finding the newest version and reading it.
_READ_ATTEMPTS = 3


def _clock() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read or written last."""

    snapshot: Snapshot
    head: Head
    shape: Shape
    tag: str  # of the version's log file


class DeltaStore(LeaseTable):
    """The lease table at `location`, with delta-rs's options for its storage."""

    opens = staticmethod(has_known_scheme)
    parse_location = staticmethod(parse_location)
    check_storage = staticmethod(check_storage)
    beside = staticmethod(beside)

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        patience: float = REQUEST_TIMEOUT,
        group: Group | None = None,
        clock: Callable[[], float] = _clock,
    ) -> None:
        """`clock` tells seconds, and must not stand still while the process or the machine does."""
        limit = f"{round(patience * 1000)}ms"
        limits = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        self._folder = Folder(location, limits | dict(options or {}), f"the lease table at {location}")
        self._history = History(location, self._folder.options)
        self._patience = patience
        self._clock = clock
        self._known: _Known | None = None
        self._newest_at = 0.0  # when the known version was the newest
        self._unchecked_looks = 0
        self._checked: _Known | None = None  # what was known at the last check
        self._unchecked: dict[int, str] = {}  # the versions that were written since, and their tokens
        #: The log file that has won a race against this handle: its version, content and tag.
        self._winner: tuple[int, tuple[bytes, str]] | None = None

    def __repr__(self) -> str:
        return f"DeltaStore({self._folder.uri!r})"

    @property
    def requests(self) -> Mapping[str, int]:
        return Counter(self._folder.requests) + Counter(self._history.requests)  # of copies

    def exists(self) -> bool:
        with self._folder.errors("reached"):
            if self._folder.is_table():
                return True
            try:
                self._folder.check_unused("choose a leaseTable that does not exist yet, or whose folder is empty")
            except StoreFormatError:
                if self._folder.is_table():  # another member has made it meanwhile
                    return True
                raise
        self._history.check()
        return False

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        if not self.exists():
            try:
                with self._folder.errors("created"):
                    self._check_left_over(group)
                    self._check_outside()
                    self._create(group, content)
            except StoreUnavailableError:
                if not self.exists():  # otherwise another creator was faster, which is as good
                    raise
        found = self.read().group
        if found != group:
            raise StoreFormatError(f"the lease table at {self._folder.uri} belongs to {found}, not to {group}")

    def _check_left_over(self, group: Group) -> None:
        """Raise `StoreFormatError` if the folder holds data files of another group's table, whose log is gone: a repair
        would find its leases in them."""
        for file in self._folder.listed():
            if is_data_file(file.name) and (found := self._description(file.name)) not in (None, description(group)):
                raise StoreFormatError(
                    f"{self._folder.uri} holds {file.name} of a lease table whose log is gone, of another group: "
                    f"{found}. Nothing was changed there: choose another leaseTable, or move it away"
                )

    def _description(self, name: str) -> str | None:
        with contextlib.suppress(ValueError):
            return description_in_rows(self._folder.parquet(name, ("kind", "host")))
        return None  # not whole, as a write that was cut off leaves it

    def _check_outside(self) -> None:
        """Raise `StoreFormatError` if the folder lies in that of a Delta table, whose VACUUM would remove it."""
        if (around := self._folder.table_around()) is not None:
            raise StoreFormatError(
                f"leaseTable={self._folder.uri} lies in the folder of the Delta table at {around}, whose VACUUM would "
                "remove it: choose a folder beside that"
            )

    def _create(self, group: Group, content: Snapshot | None) -> None:
        schema, at_ms = Schema.from_arrow(SCHEMA).to_json(), time.time_ns() // 1_000_000
        actions = creation("ehbalance lease table", description(group), schema, maintenance.PROPERTIES, at_ms)
        self._folder.make()
        if content is not None:  # in one commit: half a table would be taken for one that has lost its partitions
            rows, name = to_table(content), new_data_file()
            data = encode(rows)
            self._folder.write(name, data)
            actions.append(added(name, len(data), rows.num_rows, at_ms))
        self._folder.create(commit_file(0), lines(actions))

    # --- read --------------------------------------------------------------------------------------------------

    def read(self) -> Snapshot:
        began = time.monotonic()
        for attempt in range(1, _READ_ATTEMPTS):
            try:
                return self._read()
            except StoreDamagedError as damage:
                if attempt > 1 or not damage.problem.endswith("is missing"):  # which may be a file just tidied away
                    raise
            except StoreUnavailableError:
                if time.monotonic() - began > self._patience / 2:  # the storage does not answer: it is no race
                    raise
        return self._read()

    def _read(self) -> Snapshot:
        began = self._clock()
        try:
            with self._folder.errors("read"):
                known = (self._known and self._advanced(self._known)) or self._opened()
        except StoreDamagedError:
            self._forget()
            raise
        self._known, self._newest_at = known, began
        return known.snapshot

    def _advanced(self, known: _Known) -> _Known | None:
        """The newest version, by way of the log files since the known one; None if these are not enough."""
        if not self._is_there(known):
            return None
        newest = self._newest_head(known)
        if newest is None:
            return None
        head, tag = newest
        if head is known.head:
            return known
        snapshot = read_snapshot(self._folder, head.files, known.shape.group, head.version)
        return _Known(snapshot, head, known.shape, tag)

    def _opened(self) -> _Known:
        """The newest version, by way of delta-rs."""
        group = self._known.shape.group if self._known else None
        self._forget()
        try:
            table = self._folder.open_table()
        except DeltaError as error:
            raise self._damage() or self._folder.unavailable("read", error) from error
        shape = shape_of(table, self._folder, group)
        head, tag = head_of(table, self._folder)
        check_readable(table)
        known = _Known(read_snapshot(self._folder, head.files, shape.group, head.version), head, shape, tag)
        self._note_check(known)
        return known

    def _is_there(self, known: _Known) -> bool:
        """Whether the log can be followed from the known version on.

        It cannot be if somebody has removed the log, or put another one in its place: an older version is then missing,
        even if members go on writing. Nor if versions were cleaned up since, after a long suspension: the next one may
        be missing only for that.
        """
        if self._is_stale():
            whole = self._is_whole_from(known)
        else:
            self._unchecked_looks += 1
            if not self._folder.is_local and self._unchecked_looks < _LOOKS_PER_CHECK:
                return True
            checked = self._checked or known
            whole = self._folder.tag(commit_file(checked.head.version)) == checked.tag
        if whole:
            self._note_check(known)
        else:
            self._withdraw_strays()
        return whole

    def _note_check(self, known: _Known) -> None:
        self._checked, self._unchecked_looks = known, 0
        self._unchecked.clear()

    def _withdraw_strays(self) -> None:
        """Remove the log files that were written since the last check and that nobody can reach: in the log of a table
        that was put in the place of ours they would make its log one with a gap."""
        names = [file.name for file in self._folder.listed(LOG)]
        versions = {version_of(name) for name in names}
        checkpoint = newest_checkpoint(names)
        for version, token in sorted(self._unchecked.items()):
            path = commit_file(version)
            with contextlib.suppress(FileNotFoundError):
                reachable = version <= checkpoint or version - 1 in versions
                if not reachable and is_by(token, self._folder.read(path)):
                    self._folder.remove([path])
                    versions.discard(version)
        self._unchecked.clear()

    def _is_stale(self) -> bool:
        """Whether the log files after the known version may have been cleaned up."""
        return self._clock() - self._newest_at > maintenance.LOG_SECONDS / 2

    def _is_whole_from(self, known: _Known) -> bool:
        """Whether the log has all versions from the known one to the newest: a clean-up that was cut off may leave
        any."""
        version = known.head.version
        versions = self._versions_after(version - 1)
        whole = versions == [*range(version, version + len(versions))] != []
        return whole and self._folder.tag(commit_file(version)) == known.tag

    def _newest_head(self, known: _Known) -> tuple[Head, str] | None:
        """The head of the newest version, and the tag of its log file; None if only a whole engine can tell."""
        head, tag = known.head, known.tag
        for _ in range(_MOST_STEPS):
            found = self._log_file(head.version + 1)
            if found is None:
                return head, tag
            after = head.after(sound_actions(self._folder, head.version + 1, found[0]))
            if after is None:
                return None
            head, tag = after, found[1]
        newer = self._versions_after(head.version)
        if not newer:
            return head, tag
        newest = newer[-1]
        found = self._log_file(newest)
        jumped = head.jumped_to(newest, sound_actions(self._folder, newest, found[0])) if found else None
        return (jumped, found[1]) if jumped and found else None

    def _log_file(self, version: int) -> tuple[bytes, str] | None:
        """The log file of `version`, and its tag; None if there is none."""
        winner = self._winner  # which a read in another thread may drop
        if winner is not None and winner[0] == version:
            return winner[1]
        with contextlib.suppress(FileNotFoundError):
            return self._folder.read_tagged(commit_file(version))
        return None

    def _versions_after(self, version: int) -> list[int]:
        """The later versions whose log files are there, in order."""
        files = self._folder.listed(LOG, after=commit_file(version).removeprefix(f"{LOG}/"))
        return [found for file in files if (found := version_of(file.name)) is not None]

    def _damage(self) -> StoreDamagedError | None:
        """The error that names the file of the log that cannot be read, if there is one."""
        with contextlib.suppress(*BACKEND_ERRORS):
            for path, problem in log_problems(self._folder):
                return damaged(self._folder, f"{path} {problem}")
        return None

    def _forget(self) -> None:
        """Drop what is held, so that the next read opens the table again."""
        self._known = self._winner = None

    # --- write -------------------------------------------------------------------------------------------------

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        known = self._known
        if known is None or known.snapshot.version != base.version:
            raise ConflictError(f"version {base.version} of {self._folder.uri} is not the one that was read last")
        if known.shape.refused:
            raise self._folder.unavailable("written", ValueError(unsupported(known.shape.refused)))
        rows, name, token = to_table(new), new_data_file(), uuid.uuid4().hex
        with self._folder.errors("written"):
            data, at_ms = encode(rows, known.shape.columns), time.time_ns() // 1_000_000
            entry = overwrite(known.head, name, len(data), rows.num_rows, token, at_ms)
            self._folder.write(name, data)
        began = self._clock()
        tag = self._commit(base.version + 1, entry, token)
        self._unchecked[base.version + 1] = token
        if self._is_stale() and not self._is_whole_from(known):
            self._folder.remove([commit_file(base.version + 1)])
            self._forget()
            raise StoreUnavailableError(
                f"the lease table at {self._folder.uri} was written by others while this process was suspended: "
                "whether its own commit counts is not known"
            )
        head = Head(base.version + 1, frozenset({name}), known.head.shape_version)
        written = replace(new, version=head.version)
        self._known, self._newest_at = _Known(written, head, known.shape, tag), began
        return written

    def _commit(self, version: int, entry: bytes, token: str) -> str:
        """Create the log file of `version`; its tag. Raises `ConflictError` if it is somebody else's, and
        `StoreUnavailableError`, after which it may yet appear."""
        try:
            return self._folder.create(commit_file(version), entry)
        except BACKEND_ERRORS as error:  # the client may have tried again after a lost answer: it may be ours
            failure = error
        try:
            found = self._log_file(version)
            if found is not None and is_by(token, found[0]):
                return found[1]
        except BACKEND_ERRORS:
            found = None
        if found is None:
            raise self._folder.unavailable("written", failure) from failure
        self._winner = (version, found)
        raise ConflictError(f"somebody else has written version {version} of {self._folder.uri}") from failure

    # --- history and upkeep ------------------------------------------------------------------------------------

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        self._history.append(changes)

    def history(self) -> list[OwnershipChange]:
        return self._history.read()

    def follow_history(self, since_ms: int) -> list[OwnershipChange]:
        return self._history.follow(since_ms)

    def tidy(self) -> None:
        try:
            with self._folder.errors("tidied up"):
                known = self._known
                table_id = None if known is None else known.shape.actions[1]["metaData"]["id"]
                maintenance.tidy(self._folder, table_id, self._newest_version)
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, DeltaError) and (damage := self._damage()):
                raise damage from error
            raise

    def _newest_version(self) -> maintenance.Newest | None:
        """The newest version, if it can be told by way of the log files since the known one. Changes nothing: other
        threads read and write meanwhile."""
        known = self._known
        if known is None or self._folder.tag(commit_file(known.head.version)) != known.tag:
            return None
        newest = self._newest_head(known)
        content = newest and self._log_file(newest[0].version)
        if newest is None or content is None:
            return None
        return maintenance.Newest(newest[0], known.shape, sound_actions(self._folder, newest[0].version, content[0]))

    def maintain(self) -> None:
        self.tidy()
        self._history.compact()

    def changed_at_ms(self) -> int:
        with self._folder.errors("read"):
            files = self._folder.listed(LOG)
            if not files:
                raise FileNotFoundError(LOG)
            return max(round(file.changed * 1000) for file in files)

    def erase(self) -> None:
        self._forget()
        with self._folder.errors("removed"):
            files = [file.name for file in self._folder.listed() if is_data_file(file.name)]
            files += [f"{LOG}/{file.name}" for file in self._folder.listed(LOG) if is_log_file(file.name)]
            self._folder.remove(files)
            self._folder.remove_empty(LOG)
            self._folder.remove_empty()

    def close(self) -> None:
        self._forget()
