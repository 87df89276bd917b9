"""Fair shares where some members may not have as much as others."""

from __future__ import annotations

from collections.abc import Iterable


def fill_level(total: float, limits: Iterable[float]) -> float:
    """The level x with sum(min(limit, x)) = `total`; infinite where the limits add up to less than `total`."""
    ordered = sorted(limits)
    for index, limit in enumerate(ordered):
        if limit * (len(ordered) - index) >= total:
            return total / (len(ordered) - index)
        total -= limit
    return float("inf")
