"""A streaming query in a Spark process of its own, as a member of a group."""

from __future__ import annotations

from pathlib import Path

from tests.query.queries import Event
from tests.spark.query_process import QueryProcess


class SparkMember:
    """Started at once; see `tests.members.AnyMember`."""

    def __init__(self, name: str, process: QueryProcess, options: dict[str, str], folder: Path) -> None:
        self.name = name
        self._process = process
        self._query = process.start(options, folder)
        self._running = True

    def kill(self) -> None:
        self._running = False
        self._process.kill()

    def stop(self) -> None:
        self._running = False
        self._query.stop()

    def end(self) -> None:
        if self._running:
            self.stop()

    def seen(self) -> list[Event]:
        return self._query.rows()
