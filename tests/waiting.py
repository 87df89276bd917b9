"""Waiting for conditions, never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str, timeout: float = 120.0) -> _T:
    """The first true value of `condition`; fails with `what` and the last value after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; last: {value!r}")
        time.sleep(0.05)
