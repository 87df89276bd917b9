"""Plain consumers share a hub with Spark queries."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.consumer.mixed import Mixed, share_through_everything
from tests.spark.query_process import Query, QueryProcess

pytestmark = pytest.mark.spark


class WithSpark(Mixed):
    """A group whose queries are Spark's, one in each of `processes`."""

    def __init__(self, emulator: Emulator, path: Path, processes: list[QueryProcess]) -> None:
        super().__init__(emulator, path, lease=6)  # Sparks that start keep both cores busy
        self._processes = processes
        self._queries: dict[str, tuple[QueryProcess, Query]] = {}
        self._active = set[str]()

    def query(self, name: str) -> None:
        process = self._processes[len(self._queries)]
        self._queries[name] = process, process.start(self.options, self._path / name)
        self._active.add(name)

    def end(self, name: str, how: signal.Signals) -> None:
        if name not in self._queries:
            super().end(name, how)
            return
        self._active.remove(name)
        if how is signal.SIGKILL:
            self._queries[name][0].kill()
        else:
            self._queries[name][1].stop()

    def seen(self) -> dict[str, Counter[tuple[str, int]]]:
        return super().seen() | {name: Counter(query.rows()) for name, (_, query) in self._queries.items()}

    def close(self) -> None:
        for name in self._active:
            self._queries[name][1].stop()
        super().close()


def test_consumers_and_spark_queries_share_a_hub(processes: list[QueryProcess], tmp_path: Path) -> None:
    with Emulator() as emulator:
        mixed = WithSpark(emulator, tmp_path, processes)
        try:
            twice = share_through_everything(mixed, "sync", "async", abrupt=["query3"])  # stopped within a batch
            print(f"of {sum(mixed.group.everything().values())} events {len(twice)} were read twice")
        finally:
            mixed.close()
