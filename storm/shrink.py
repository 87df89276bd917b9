"""Reduces a plan to the fewest faults that still violate the same invariant."""

from __future__ import annotations

import time
from dataclasses import replace

from storm.plan import Plan
from storm.world import RunResult, play

#: Time limit of a search, in seconds.
_TIMEOUT = 60.0


def shrink(plan: Plan, found: RunResult) -> tuple[Plan, RunResult]:
    """Find a plan with fewer faults, and its result, by dropping smaller and smaller parts of the list of faults."""
    size, until = len(plan.faults), time.monotonic() + _TIMEOUT
    while size:
        start = 0
        while start < len(plan.faults) and time.monotonic() < until:
            fewer = replace(plan, faults=plan.faults[:start] + plan.faults[start + size :])
            result = play(fewer)
            if result.violation and found.violation and result.violation.name == found.violation.name:
                plan, found = fewer, result
            else:
                start += size
        size //= 2
    return plan, found
