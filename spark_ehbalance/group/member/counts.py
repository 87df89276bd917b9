"""Counts of a member's commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_ehbalance.group.changes import Outcome
from spark_ehbalance.group.history import OwnershipChange


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the process began: `commits`, `lost` races, and `moves` by the type of history event."""

    commits: int = 0
    lost: int = 0
    moves: Counter[str] = field(default_factory=Counter)

    def committed(self, outcome: Outcome, changes: Sequence[OwnershipChange]) -> Counts:
        """The counts after a commit that changed the group's ownership by `changes`."""
        commits = self.commits if outcome.seconds is None else self.commits + 1
        moves = self.moves + Counter(change.event for change in changes)
        return Counts(commits, self.lost + outcome.lost_races, moves)
