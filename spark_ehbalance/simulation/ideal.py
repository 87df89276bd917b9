"""What an ideal strategy would do: the nearest balanced layout, and how many moves it takes."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ehbalance.group.strategies.shares import whole_share


def fair_counts(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> list[int]:
    """The balanced layout nearest to `owned`, as one count per member in the same order.

    Every member has the fair share rounded down or one more, or what its limit allows; the members that own most
    already have one more.
    """
    known = limits or {}
    most = {name: partitions if (limit := known.get(name)) is None else limit for name in owned}
    floor, rest = whole_share(partitions, most.values())
    counts = {name: min(limit, floor) for name, limit in most.items()}
    able = [name for name, limit in most.items() if limit > floor]
    for name in sorted(able, key=lambda name: -owned[name])[:rest]:
        counts[name] += 1
    return list(counts.values())


def fewest_moves(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> int:
    """How many partitions must change owners until the group is balanced."""
    wanted = fair_counts(owned, partitions, limits)
    return sum(max(0, want - have) for want, have in zip(wanted, owned.values(), strict=True))


class Ideal:
    """A group that is rebalanced with the fewest moves as soon as something changes."""

    def __init__(self, owned: Mapping[str, int]) -> None:
        self.moves = 0
        self._owned = dict(owned)

    def change(self, limits: Mapping[str, int | None], partitions: int) -> None:
        """From now on the group has these members, given with their limits, and so many partitions."""
        owned = {name: self._owned.get(name, 0) for name in limits}
        self.moves += fewest_moves(owned, partitions, limits)
        self._owned = dict(zip(owned, fair_counts(owned, partitions, limits), strict=True))
