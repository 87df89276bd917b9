"""Processes of queries, played within the test's own: each can be killed, or cut off from its lease table, between two
of its steps. Real stores; only what a dead process would not do any more is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_ehbalance.errors import EhBalanceError, StoreUnavailableError
from spark_ehbalance.lease_table.contract import LeaseTable
from spark_ehbalance.lease_table.opening import open_store
from spark_ehbalance.query import assembly
from tests.query.queries import Query


class _Life:
    """One process. `trouble` is what its lease table answers to everything; None while it answers."""

    def __init__(self) -> None:
        self.ended = False
        self.trouble: EhBalanceError | None = None
        self.lock = threading.RLock()

    def guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*args: Any, **more: Any) -> Any:
            with self.lock:  # so that a process is not killed in the middle of a commit
                if self.trouble is not None:
                    raise self.trouble
                return call(*args, **more)

        return guard


class Lives:
    """The processes that were started since this was made, one for each planner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lives: list[_Life] = []
        self._of: dict[int, _Life] = {}
        monkeypatch.setattr(assembly, "open_store", self._opened)

    def start(self, start: Callable[[], Query]) -> Query:
        """The query that `start` starts, in a process of its own."""
        self._lives.append(life := _Life())
        try:
            query = start()
        except BaseException:
            life.ended = True
            raise
        self._of[id(query.planner)] = life
        return query

    def cut_off(self, query: Query) -> None:
        """From now on its process does not reach the lease table."""
        life = self._of[id(query.planner)]
        with life.lock:
            life.trouble = StoreUnavailableError("the lease table is away")

    def kill(self, query: Query) -> None:
        """End its process at once: it gives nothing back and tells nothing any more."""
        life = self._of[id(query.planner)]
        with life.lock:
            life.trouble, life.ended = EhBalanceError("this process was killed"), True
        query.stop()

    def stop(self, query: Query) -> None:
        """End its process in order."""
        query.stop()
        self._of[id(query.planner)].ended = True

    def _opened(self, *args: Any) -> LeaseTable:
        store, life = open_store(*args), self._lives[-1]
        for name in ("create", "read", "write", "record", "tidy"):
            setattr(store, name, life.guarded(getattr(store, name)))
        return store
