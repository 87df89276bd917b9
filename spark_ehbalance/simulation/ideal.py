"""What the best of all strategies would do: the balanced layout that is nearest, and how many moves it takes."""

from __future__ import annotations

from collections.abc import Mapping


def fair_counts(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> list[int]:
    """The balanced layout that is nearest to `owned`, as one count per member in the same order.

    Everybody has `level` or one more, or what its limit allows; the one more is for those who have most already.
    """
    limits = {name: limit for name, limit in (limits or {}).items() if limit is not None}

    def most(name: str, level: int) -> int:
        limit = limits.get(name)
        return level if limit is None else min(level, limit)

    level = 0 if limits or not owned else partitions // len(owned)
    while level < partitions and sum(most(name, level + 1) for name in owned) <= partitions:
        level += 1
    fair = {name: most(name, level) for name in owned}
    rest = partitions - sum(fair.values())
    able = [name for name in owned if most(name, level + 1) > level]
    for name in sorted(able, key=lambda name: -owned[name])[:rest]:
        fair[name] += 1
    return list(fair.values())


def fewest_moves(owned: Mapping[str, int], partitions: int, limits: Mapping[str, int | None] | None = None) -> int:
    """How many partitions have to come to somebody who does not have them, until the group is balanced."""
    fair = fair_counts(owned, partitions, limits)
    return sum(max(0, wanted - have) for wanted, have in zip(fair, owned.values(), strict=True))


class Ideal:
    """A group that is balanced again with the fewest moves as soon as something changes."""

    def __init__(self, owned: Mapping[str, int]) -> None:
        self.moves = 0
        self._owned = dict(owned)

    def change(self, limits: Mapping[str, int | None], partitions: int) -> None:
        """From now on there are these members, given with their limits, and so many partitions."""
        owned = {name: self._owned.get(name, 0) for name in limits}
        self.moves += fewest_moves(owned, partitions, limits)
        self._owned = dict(zip(owned, fair_counts(owned, partitions, limits), strict=True))
