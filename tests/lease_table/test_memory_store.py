"""The memory store: one object that several threads use."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.errors import ConflictError
from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.memory import MemoryStore
from tests.lease_table.contenders import Opening
from tests.lease_table.contenders import threads as contenders
from tests.lease_table.store_conformance import ANN, LeaseTableConformance, filled

__all__ = ["contenders"]


class TestMemoryStore(LeaseTableConformance):
    def opening(self, tmp_path: Path) -> Opening:
        store = MemoryStore()
        return lambda: store


def test_commit_fails_after_its_last_attempt() -> None:
    class Beaten(MemoryStore):
        """A store in which another member always commits first."""

        def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
            newest = super().read()
            super().write(newest, newest)
            return super().write(base, new)

    store = MemoryStore()
    before = filled(store, ANN)
    beaten = Beaten(before)
    with pytest.raises(ConflictError):
        commit(beaten, before, [Heartbeat(by=ANN, at_ms=1)], attempts=3)
    assert beaten.read().version == before.version + 3
    assert beaten.read().members == before.members
