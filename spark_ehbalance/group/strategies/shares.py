"""The fair share of a total, divided as evenly as the members' limits allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def fair_share(total: float, limits: Iterable[float]) -> float:
    """The share x with sum(min(limit, x)) = `total`; infinite if the limits add up to less than `total`."""
    ordered = sorted(limits)
    for index, limit in enumerate(ordered):
        if limit * (len(ordered) - index) >= total:
            return total / (len(ordered) - index)
        total -= limit
    return float("inf")


def whole_share(partitions: int, limits: Collection[int]) -> tuple[int, int]:
    """The fair share, rounded down and at most `partitions`, and the number of members that should have one more."""
    floor = int(min(fair_share(partitions, limits), partitions))
    return floor, partitions - sum(min(limit, floor) for limit in limits)
