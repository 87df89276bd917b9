"""Views of a group from its store."""

from __future__ import annotations

import threading
from dataclasses import replace

from spark_ehbalance.clock import monotonic, now_ms
from spark_ehbalance.errors import StoreError
from spark_ehbalance.group.expiry import Observations
from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Length of the history in a view in milliseconds, and seconds for which a view is reused.
_HISTORY_MS, _READ_INTERVAL = 3_600_000, 1.0


class Viewer:
    """Reads `store` repeatedly, dates renewals by its own clock, and keeps recent history."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._observations = Observations()
        self._history: dict[OwnershipChange, None] = {}
        self._lock = threading.Lock()
        self._latest: GroupView | None = None
        self._until = 0.0

    def latest(self) -> GroupView:
        """A view that is at most one second old. While the table cannot be read, this is the last view, with the reason
        in `problem`. Thread-safe. Raises `StoreError` if the table was never read."""
        with self._lock:
            if self._latest is None or monotonic() >= self._until:
                try:
                    self._latest = self.view()
                except StoreError as error:
                    if self._latest is None:
                        raise
                    if not self._latest.problem:
                        _LOG.warning("%s", error)
                    self._latest = replace(self._latest, problem=str(error))
                self._until = monotonic() + _READ_INTERVAL
            return self._latest

    def view(self) -> GroupView:
        """The current view, without crash loops if the history cannot be read. Raises `StoreError`."""
        snapshot, at_ms, now = self._store.read(), now_ms(), monotonic()
        self._observations = self._observations.updated(snapshot, now)
        observed = self._observations.members.items()
        seen = {id: at_ms - round(1000 * (now - seen.since)) for id, seen in observed if not seen.cold}
        try:  # the store may return a row twice
            added = dict.fromkeys(self._store.follow_history(at_ms - _HISTORY_MS))
            rows = sorted({**self._history, **added}, key=lambda row: (row.at_ms, row.epoch or 0))
            self._history = {row: None for row in rows if row.at_ms > at_ms - _HISTORY_MS}
        except StoreError as error:
            _LOG.info("Cannot read the history: %s", error)
        return GroupView(snapshot, at_ms, [*self._history], self._store.capabilities.members, seen)
