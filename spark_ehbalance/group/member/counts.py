"""What a member has written, as plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_ehbalance.group.changes import Outcome
from spark_ehbalance.group.history import OwnershipChange


@dataclass(slots=True)
class Counts:
    """Since its process began: `commits`, the races that they `lost`, and `moves` by
    the history's events. One thread writes them."""

    commits: int = 0
    lost: int = 0
    moves: Counter[str] = field(default_factory=Counter)

    def committed(self, outcome: Outcome, changes: Sequence[OwnershipChange]) -> None:
        """Count a commit and what it made of the group's ownership."""
        self.lost += outcome.lost_races
        if outcome.seconds is not None:
            self.commits += 1
        for each in changes:
            self.moves[each.event] += 1
