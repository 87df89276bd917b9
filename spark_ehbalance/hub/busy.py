"""Counts how often the service was too busy, in this process, and says so now and then."""

from __future__ import annotations

import threading
import time

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds between two log lines about one hub: each refusal is followed by a wait of four or five.
_LOG_INTERVAL = 60.0


class BusyCount:
    """How often each hub has refused a receiver or a request for properties because it was too busy. For several
    threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told_at: dict[str, float] = {}

    def note(self, hub: str, count: int = 1) -> None:
        """`hub`, with its namespace, has refused `count` more. Warns at the first time, then at most once a minute."""
        now = time.monotonic()
        with self._lock:
            total = self._counts[hub] = self._counts.get(hub, 0) + count
            tell = now - self._told_at.get(hub, float("-inf")) >= _LOG_INTERVAL
            if tell:
                self._told_at[hub] = now
        if tell:
            _LOG.warning(
                "%s was too busy (com.microsoft:server-busy), %d times since this process began: waiting 4 to 5 s each "
                "time. If that goes on, give the namespace more throughput units, or let fewer queries read it",
                hub, total,
            )  # fmt: skip

    def of(self, hub: str) -> int:
        """How often `hub`, with its namespace, was too busy."""
        with self._lock:
            return self._counts.get(hub, 0)


#: Of this process.
BUSY = BusyCount()
