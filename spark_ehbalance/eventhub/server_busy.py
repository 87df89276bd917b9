"""Counts the "server busy" responses that this process receives, and logs at most one warning per minute per hub."""

from __future__ import annotations

import threading
import time

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds between two log lines about the same hub. It is long because a throttled client retries every four to five
#: seconds.
_LOG_INTERVAL = 60.0


class BusyCount:
    """Counts throttled receivers, senders and requests for properties, by hub. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def record(self, hub: str, count: int = 1) -> None:
        """Add `count` throttled requests to `hub`, whose name includes the namespace."""
        now = time.monotonic()
        with self._lock:
            total = self._counts[hub] = self._counts.get(hub, 0) + count
            if now - self._logged_at.get(hub, float("-inf")) < _LOG_INTERVAL:
                return
            self._logged_at[hub] = now
        _LOG.warning(
            "Event hub throttled a request (com.microsoft:server-busy), retrying in 4 to 5 s: hub=%s throttled=%d",
            hub, total,
        )  # fmt: skip

    def count(self, hub: str) -> int:
        """Throttled requests to `hub` since the process started."""
        with self._lock:
            return self._counts.get(hub, 0)


#: The process's count.
BUSY = BusyCount()
