"""The clocks: one measures durations, the other dates records."""

from __future__ import annotations

import time

#: On Linux and macOS, `time.monotonic` stops while the machine sleeps. After waking up, a member would therefore
#: consider leases valid that other members have claimed meanwhile. On Windows it does not stop, and the clocks below do
#: not exist.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def monotonic() -> float:
    """Seconds since an unspecified moment, including time asleep. Comparable only within one process."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def now_ms() -> int:
    """The wall-clock time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
