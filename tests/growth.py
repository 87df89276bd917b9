"""Checks how the work for an untrusted text grows with its length."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Lengths are multiplied by this, which multiplies linear work by 16 and quadratic work by 256.
_TIMES = 16


def assert_linear(work: Callable[[str], object], unit: str, length: int = 4000) -> None:
    """Fail if the CPU time of `work` grows quadratically with the number of `unit`s; `length` is the shorter text's
    length in characters. The speed itself is not checked."""

    def cost(text: str) -> float:
        begun = time.thread_time()
        work(text)
        return time.thread_time() - begun

    short = unit * (length // len(unit))
    once = max(min(cost(short) for _ in range(5)), 1e-4)  # shorter times are noise
    assert min(cost(short * _TIMES) for _ in range(2)) < 4 * _TIMES * once, unit
