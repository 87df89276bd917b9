"""Counts the refusals "server busy" of this process, and logs a warning at most once a minute for each hub."""

from __future__ import annotations

import threading
import time

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds between two log lines about one hub: each refusal is followed by a wait of four or five.
_LOG_INTERVAL = 60.0


class BusyCount:
    """Refusals of receivers and requests for properties, by hub. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def note(self, hub: str, count: int = 1) -> None:
        """Count refusals by `hub` (with its namespace)."""
        now = time.monotonic()
        with self._lock:
            total = self._counts[hub] = self._counts.get(hub, 0) + count
            if now - self._logged_at.get(hub, float("-inf")) < _LOG_INTERVAL:
                return
            self._logged_at[hub] = now
        _LOG.warning(
            "%s was too busy (com.microsoft:server-busy), %d times since this process began: waiting 4 to 5 s each "
            "time. If that goes on, give the namespace more throughput units, or let fewer queries read it",
            hub, total,
        )  # fmt: skip

    def of(self, hub: str) -> int:
        """Refusals by `hub` (with its namespace)."""
        with self._lock:
            return self._counts.get(hub, 0)


#: The count of this process.
BUSY = BusyCount()
