"""The lease store for tests and for queries without a lease table."""

from __future__ import annotations

import threading
from dataclasses import replace

from spark_ehbalance.errors import ConflictError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import LeaseStore

_LOCATION = "memory://"


class MemoryStore(LeaseStore):
    """A store in this process's memory, which initially contains `snapshot`. Unlike other stores, it is thread-safe."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._lock = threading.Lock()
        self._snapshot = snapshot

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = content or Snapshot(group)
            elif self._snapshot.group != group:
                problem = f"it belongs to {self._snapshot.group}, not to {group}"
                raise StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=_LOCATION, problem=problem)

    def exists(self) -> bool:
        return self._snapshot is not None

    def read(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None:
                raise StoreUnavailableError("EHB_LEASE_TABLE_MISSING", location=_LOCATION)
            return self._snapshot

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        with self._lock:
            if self._snapshot is None or self._snapshot.version != base.version:
                raise ConflictError("EHB_COMMIT_CONFLICT", version=base.version + 1, location=_LOCATION)
            self._snapshot = replace(new, version=base.version + 1)
            return self._snapshot

    def close(self) -> None:
        pass
