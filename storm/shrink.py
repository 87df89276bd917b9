"""Reduces a plan to the fewest faults that still violate the same invariant."""

from __future__ import annotations

import time
from dataclasses import replace

from storm.plan import Plan
from storm.world import RunResult, play

#: Seconds of one search.
_PATIENCE = 60.0


def shrink(plan: Plan, found: RunResult) -> tuple[Plan, RunResult]:
    """The plan with the fewest faults and its result, by dropping ever smaller parts of the list."""
    size, until = len(plan.faults), time.monotonic() + _PATIENCE
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
