"""The clock with which leases are measured."""

from __future__ import annotations

import time

#: `time.monotonic` stops while a Linux or macOS machine sleeps, so after waking, leases that other members have claimed
#: would seem valid. On Windows it does not stop, and the clocks below do not exist.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def monotonic() -> float:
    """Seconds since an unspecified moment, including sleep. Comparable within one process."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
