"""The clock that leases are measured with."""

from __future__ import annotations

import time

#: `time.monotonic` stops while a Linux or macOS machine sleeps: on waking, leases that others took would seem valid.
#: On Windows it does not stop, and these clocks do not exist.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def monotonic() -> float:
    """Seconds since an unspecified moment, including sleep. Comparable within one process."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
