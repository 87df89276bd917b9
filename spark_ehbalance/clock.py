"""The clock by which leases are judged."""

from __future__ import annotations

import time

#: Linux stops CLOCK_MONOTONIC while the machine sleeps, and macOS what `time.monotonic` reads: on waking, leases that
#: others have taken meanwhile would seem to last. Windows has neither, and its `time.monotonic` does not stop.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def monotonic() -> float:
    """Seconds since an unspecified moment, with the time in which the machine slept. Comparable within one process."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
