"""Measures the load of one query's partitions and of its host, and reports it to the lease keeper."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from spark_ehbalance.group.member.load_meter import LoadMeter, MemberMeter
from spark_ehbalance.group.model import Load, MemberLoad
from spark_ehbalance.query.processes import cpu_time


class LoadReporter:
    """Passes measurements to `report`, about once a second. Several threads may call it."""

    def __init__(self, report: Callable[[Mapping[str, Load], MemberLoad], None]) -> None:
        self._report = report
        self._partitions, self.member = LoadMeter(), MemberMeter()
        self._lock = threading.Lock()

    def batch_begins(self) -> None:
        """The query has been given a batch."""
        with self._lock:
            self.member.batch_begins(time.monotonic())

    def batch_ends(self, events: int) -> None:
        """The sink has finished the batch, with so many sequence numbers; may be called again for the same batch."""
        with self._lock:
            self.member.batch_ends(time.monotonic(), events)

    def update(self, ends: Mapping[str, int], positions: Mapping[str, int]) -> None:
        """Measure anew if it is time to. `ends` are the sequence numbers after the last event of each partition,
        `positions` those to read next."""
        with self._lock:
            now = time.monotonic()
            loads = self._partitions.update(now, ends, positions)
            if loads is not None:
                self.member.host(now, cpu_time())
                self._report(loads, self.member.load(self._partitions.total()))
