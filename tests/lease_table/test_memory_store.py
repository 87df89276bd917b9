"""The memory store: one object, used by several threads."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from spark_ehbalance.lease_table.memory import MemoryStore
from tests.lease_table.contenders import Opening, line_up
from tests.lease_table.store_conformance import LeaseTableConformance


class TestMemoryStore(LeaseTableConformance):
    def opening(self, tmp_path: Path) -> Opening:
        store = MemoryStore()
        return lambda: store

    def contenders(self, count: int) -> Executor:
        return ThreadPoolExecutor(count, initializer=line_up, initargs=(threading.Barrier(count),))
