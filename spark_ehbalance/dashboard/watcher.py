"""Looks at one lease table for all viewers of the page."""

from __future__ import annotations

import threading
import time

from spark_ehbalance.dashboard.board import Board
from spark_ehbalance.dashboard.lag import HOUR_MS
from spark_ehbalance.dashboard.view import Look, View
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.stores.base import LeaseTable
from spark_ehbalance.text import logger

#: Seconds from one look to the next while somebody looks at the page, and else, for the lag of the last hour.
WATCHED, UNWATCHED = 1.0, 10.0

_log = logger(__name__)


class Watcher(threading.Thread):
    """Shows the table of `store` as the group with this `number`, until the board is closed. A thread for each table:
    one that does not answer keeps the others from nothing."""

    def __init__(self, number: int, store: LeaseTable, board: Board) -> None:
        super().__init__(name=f"dashboard-{number}", daemon=True)
        self._number, self._store, self._board = number, store, board
        self._view = View(store.capabilities.members)

    def run(self) -> None:
        while True:
            try:
                self._look()
            except EhBalanceError as error:
                self._board.fail(self._number, str(error))
            except Exception as error:  # the page says so: else it would show an old state as the present one
                _log.exception("a look at a lease table has failed")
                self._board.fail(self._number, f"a fault of ehbalance: {type(error).__name__}")
            if not self._board.wait(WATCHED, UNWATCHED):
                return

    def _look(self) -> None:
        snapshot, now_ms = self._store.read(), time.time_ns() // 1_000_000
        look = Look(snapshot, self._added(now_ms - HOUR_MS), now_ms, time.monotonic())
        self._board.show(self._number, self._view.sections(look), now_ms)

    def _added(self, since_ms: int) -> list[OwnershipChange]:
        """What was added to the history; nothing while it cannot be read, on which no lease depends."""
        try:
            return self._store.follow_history(since_ms)
        except EhBalanceError as error:
            _log.info("the history cannot be read: %s", error)
            return []
