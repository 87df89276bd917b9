"""The ideal strategy, with which real ones are compared: the nearest balanced layout, and the moves needed to reach
it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ehbalance.group.strategies.shares import whole_share


def fair_counts(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> list[int]:
    """Partition counts of the balanced layout nearest to `owned`, in the same order.

    Each member gets the fair share, rounded down, or its limit if that is lower. The members that own the most get one
    of the remaining partitions each.
    """
    known = limits or {}
    maximums = {name: partitions if (limit := known.get(name)) is None else limit for name in owned}
    floor, rest = whole_share(partitions, maximums.values())
    counts = {name: min(limit, floor) for name, limit in maximums.items()}
    able = [name for name, limit in maximums.items() if limit > floor]
    for name in sorted(able, key=lambda name: -owned[name])[:rest]:
        counts[name] += 1
    return list(counts.values())


def fewest_moves(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> int:
    """Minimum number of moves needed to balance the group."""
    fair = fair_counts(owned, partitions, limits)
    return sum(max(0, target - count) for target, count in zip(fair, owned.values(), strict=True))


class Ideal:
    """A group that is rebalanced immediately after each change, with the fewest possible moves."""

    def __init__(self, owned: Mapping[str, int]) -> None:
        self.moves = 0
        self._owned = dict(owned)

    def change(self, limits: Mapping[str, int | None], partitions: int) -> None:
        """Change the group to the members in `limits` and this number of partitions."""
        owned = {name: self._owned.get(name, 0) for name in limits}
        self.moves += fewest_moves(owned, partitions, limits)
        self._owned = dict(zip(owned, fair_counts(owned, partitions, limits), strict=True))
