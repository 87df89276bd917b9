"""The lease store on a Delta table, read and written by delta-rs: no JVM, no coordinator.

Delta's commit protocol is the compare-and-swap: an overwrite of a `DeltaTable` that is held at version V, with no
commit retries, succeeds only as version V + 1. (`write_deltalake` with a path would load the newest version first and
overwrite what nobody here has seen.)
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_ehbalance.errors import ConflictError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.model import Group, Snapshot
from spark_ehbalance.leases.store import LeaseStore
from spark_ehbalance.leases.table_format import SCHEMA, description, from_table, group_of, to_table

#: A commit's cost grows with the log since the last checkpoint: 9 ms after 50 commits, 100 ms after 3,000.
CHECKPOINT_INTERVAL = 50

#: Kept only for readers that are in the middle of something; ownership changes have a history table of their own.
RETENTION = "interval 10 minutes"

_COMMIT_TOKEN = "ehbalance.commit"
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaStore(LeaseStore):
    """The lease table at `uri` (a path or an address that delta-rs knows), with delta-rs's `storage_options`."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = uri
        self._storage_options = dict(storage_options or {})
        self._table: DeltaTable | None = None
        self._snapshot: Snapshot | None = None

    def __repr__(self) -> str:
        return f"DeltaStore({self._uri!r})"

    def exists(self) -> bool:
        """Whether there is a Delta table at the address. Raises `StoreUnavailableError`."""
        try:
            return DeltaTable.is_deltatable(self._uri, storage_options=self._storage_options)
        except (OSError, DeltaError, ValueError) as error:
            raise self._unavailable("reached", error) from error

    def create(self, group: Group) -> None:
        if not self.exists():
            try:
                DeltaTable.create(
                    self._uri,
                    schema=Schema.from_arrow(SCHEMA),
                    mode="error",
                    name="ehbalance lease table",
                    description=description(group),
                    configuration={
                        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                        "delta.logRetentionDuration": RETENTION,
                        "delta.deletedFileRetentionDuration": RETENTION,
                    },
                    storage_options=self._storage_options,
                    # With retries a creator that lost the race would commit its metadata over the winner's.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except (OSError, DeltaError, ValueError) as error:
                if not self.exists():  # otherwise somebody else was faster, which is as good
                    raise self._unavailable("created", error) from error
        found = self.read().group
        if found != group:
            raise StoreFormatError(f"the lease table at {self._uri} belongs to {found}, not to {group}")

    def read(self) -> Snapshot:
        try:
            if self._table is None:
                self._table = DeltaTable(self._uri, storage_options=self._storage_options)
            else:
                self._table.update_incremental()
            version = self._table.version()
            if self._snapshot is None or self._snapshot.version != version:
                group = group_of(self._table.metadata().description, self._uri)
                self._snapshot = from_table(self._table.to_pyarrow_table(), group, version)
            elif not self.exists():  # looking for a newer version finds none in a table that is gone, and no error
                raise TableNotFoundError(self._uri)
        except TableNotFoundError:
            self._forget()
            raise StoreUnavailableError(f"there is no lease table at {self._uri}: `ehbalance init` makes one") from None
        except (OSError, DeltaError, ValueError, KeyError) as error:
            self._forget()
            raise self._unavailable("read", error) from error
        return self._snapshot

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        if self._table is None or self._table.version() != base.version:
            raise ConflictError(f"version {base.version} of {self._uri} is not the one that was read last")
        token = uuid.uuid4().hex
        try:
            write_deltalake(
                self._table,
                to_table(new),
                mode="overwrite",
                commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={_COMMIT_TOKEN: token}),
                post_commithook_properties=_HOOKS,
            )
        except (OSError, DeltaError, ValueError) as error:
            self._settle(base, token, error)
        self._snapshot = replace(new, version=base.version + 1)
        return self._snapshot

    def close(self) -> None:
        self._forget()

    def _settle(self, base: Snapshot, token: str, error: Exception) -> None:
        """After a failed write: return if it was written after all, else raise what it really was."""
        self._forget()
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

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(f"the lease table at {self._uri} could not be {what}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    """delta-rs's error text on one line, its causes included, without queries of addresses: they may hold a token."""
    text = " ".join(re.sub(r"\x1b\[\d*m|[↳│]", "", str(error)).split()) or type(error).__name__
    return re.sub(r"\?\S*=\S*", "?…", text)[:500]
