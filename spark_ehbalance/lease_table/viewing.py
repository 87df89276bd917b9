"""Reads the view of a group from its store."""

from __future__ import annotations

import time

from spark_ehbalance.errors import StoreError
from spark_ehbalance.group.group_view import HISTORY_MS, GroupView, Observer
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.lease_table.contract import LeaseTable
from spark_ehbalance.text import logger

_LOG = logger(__name__)


def now_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Viewer:
    """Reads `store` again and again. One thread at a time may call it."""

    def __init__(self, store: LeaseTable) -> None:
        self._store = store
        self._observer = Observer(store.capabilities.members)

    def view(self) -> GroupView:
        """The view as of now. Raises `StoreError` if the table cannot be read; without its history it is complete but
        for crash loops."""
        snapshot, at_ms, added = self._store.read(), now_ms(), list[OwnershipChange]()
        if self._store.capabilities.members:
            try:
                added = self._store.follow_history(at_ms - HISTORY_MS)
            except StoreError as error:
                _LOG.info("the history cannot be read: %s", error)
        return self._observer.view(snapshot, added, at_ms, time.monotonic())
