"""What an ideal strategy would do: the nearest balanced layout, and how many moves it takes."""

from __future__ import annotations

from collections.abc import Mapping


def fair_counts(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> list[int]:
    """The balanced layout nearest to `owned`, as one count per member in the same order.

    Every member has `level` or one more, or what its limit allows; the members that own most already have one more.
    """
    limits = {name: limit for name, limit in (limits or {}).items() if limit is not None}

    def most(name: str, level: int) -> int:
        limit = limits.get(name)
        return level if limit is None else min(level, limit)

    if owned and not limits:  # at every change of a large group
        level, rest = divmod(partitions, len(owned))
        more = set(sorted(owned, key=lambda name: -owned[name])[:rest])
        return [level + (name in more) for name in owned]
    level = 0
    while level < partitions and sum(most(name, level + 1) for name in owned) <= partitions:
        level += 1
    counts = {name: most(name, level) for name in owned}
    rest = partitions - sum(counts.values())
    able = [name for name in owned if most(name, level + 1) > level]
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
