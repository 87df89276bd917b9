"""Fair shares where some may not have as much as others."""

from __future__ import annotations

from collections.abc import Iterable


def level(total: float, limits: Iterable[float]) -> float:
    """How much each may have, or as much of it as its limit allows, when `total` is shared out, as water fills vessels
    that are joined; infinite where the limits come to less."""
    ordered = sorted(limits)
    for place, limit in enumerate(ordered):
        if limit * (len(ordered) - place) >= total:
            return total / (len(ordered) - place)
        total -= limit
    return float("inf")
