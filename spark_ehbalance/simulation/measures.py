"""Measurements of a simulated group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, pstdev
from typing import Any

from spark_ehbalance.group.changes import Outcome
from spark_ehbalance.group.history import OwnershipChange, ownership_changes
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.shares import whole_share

#: A group also counts as balanced if no member's load exceeds the mean by more than this fraction, or if no single move
#: would help: if a few partitions carry most of the load, equal counts are not the goal.
_TOLERANCE = 0.1


class TwoOwners(AssertionError):
    """Two owners had the same epoch in a partition, or an epoch decreased, because of a bug in the lease code."""


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of running a scenario with a strategy.

    `moves` counts changes of owner, `fewest_moves` the moves that the ideal strategy needs, and `later_moves` the moves
    after the group was balanced. `unowned` is the time without a running owner, in seconds, summed over all partitions.
    `longest_silence` is the longest time between two commits of a running member, as a multiple of the member's lease
    duration; `lease_duration` is the group's lease duration at the end, in seconds. `spread` is the standard deviation
    of the members' loads divided by their mean, averaged over time; `spread_worst` is its maximum.
    """

    scenario: str
    strategy: str
    partitions: int
    members: int
    cycles: int
    seconds: float
    seed: int
    seconds_to_balance: float | None
    moves: int
    fewest_moves: int
    later_moves: int
    unowned: float
    lease_duration: float
    longest_silence: float
    events: int
    duplicates: int
    commits: int
    conflicts: int
    spread: float
    spread_worst: float
    changes: tuple[OwnershipChange, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """All fields except `changes`."""
        table = asdict(self)
        del table["changes"]
        return table


def _spread(loads: Sequence[float]) -> float:
    """The standard deviation divided by the mean; 0 if there is no load."""
    mean = fmean(loads) if loads else 0.0
    return pstdev(loads) / mean if mean > 0 else 0.0


class Ledger:
    """Records who owns which partition and which members run, and computes the measures. Times are in seconds since the
    start."""

    def __init__(
        self,
        start: Snapshot,
        clock: Callable[[], float],
        rates: Callable[[], Mapping[str, float]],
        lease_duration: float,
    ) -> None:
        self.moves: list[float] = []  # the times of moves
        self.lease_duration = lease_duration
        self.longest_silence = 0.0
        self.unowned = 0.0
        self.changes: list[OwnershipChange] = []
        self.spreads: list[float] = []
        self.balanced: list[tuple[float, bool]] = []  # (time, whether balanced from then on)
        self.ideal = Ideal({owner: len(owned) for owner, owned in start.ownership.owned.items() if owner is not None})
        self._clock = clock
        self._rates = rates
        self._ownership = start.ownership
        self._last_owner = {p: lease.owner for p, lease in start.leases.items()}
        self._epochs = {p: (lease.epoch, lease.owner) for p, lease in start.leases.items()}
        self._running: dict[str, int | None] = {}  # member → limit
        self._last_commits: dict[str, float] = {}  # running member → time
        self._partitions = len(start.leases)
        self._unserved = self._partitions
        self._since = 0.0

    def change(self, limits: Mapping[str, int | None], partitions: int) -> None:
        """Set the running members to the names in `limits`, and set the number of partitions."""
        self._running, self._partitions = dict(limits), partitions
        for name in self._last_commits.keys() - limits.keys():
            del self._last_commits[name]
        self._update()

    def record_commit(self, member: str, outcome: Outcome) -> None:
        """Record a commit by `member`."""
        now = self._clock()
        row = outcome.before.members.get(member)
        own_ms = row.lease_duration_ms if row is not None else None
        silence = now - self._last_commits.get(member, now)
        self._record_silence(silence, self.lease_duration if own_ms is None else own_ms / 1000)
        self._last_commits[member] = now
        if outcome.after.lease_duration_ms is not None:
            self.lease_duration = outcome.after.lease_duration_ms / 1000
        if outcome.after.ownership == outcome.before.ownership:
            return
        for change in ownership_changes(outcome):
            if change.partition is None or change.epoch is None:  # a command about a member
                continue
            epoch, owner = self._epochs.get(change.partition, (0, None))
            if change.epoch < epoch or (change.epoch == epoch and change.owner not in (owner, None)):
                raise TwoOwners(f"partition {change.partition}: {owner} has epoch {epoch}, and then {change}")
            self._epochs[change.partition] = (change.epoch, change.owner or owner)
            if change.owner is not None and change.owner != self._last_owner.get(change.partition):
                self.moves.append(now)
                self._last_owner[change.partition] = change.owner
            if change.owner != change.owner_before:
                self.changes.append(replace(change, at_ms=round(1000 * now), why=None))
        self._ownership = outcome.after.ownership
        self._update()

    def sample(self) -> None:
        """Record the spread of the members' loads."""
        rates, owned = self._rates(), self._ownership.owned
        self.spreads.append(_spread([sum(rates[p] for p in owned.get(name, ())) for name in self._running]))

    def finish(self) -> None:
        """End the measurement."""
        self._update()
        for committed in self._last_commits.values():
            self._record_silence(self._clock() - committed, self.lease_duration)

    def seconds_to_balance(self, ended: float, until: float) -> float | None:
        """Seconds from `ended`, the end of a disturbance, until the group was balanced and then stayed balanced until
        the next disturbance, at `until`. If it did not stay balanced, the seconds until it was first balanced after
        `until`; None if it never was."""
        gained = [since for since, balanced in self.balanced if balanced and since < until]
        lost = [since for since, balanced in self.balanced if not balanced and since < until]
        if not gained or (lost and lost[-1] > gained[-1]):
            gained = [since for since, balanced in self.balanced if balanced and since >= until][:1]
        return max(0.0, gained[-1] - ended) if gained else None

    def later_moves(self, ended: float, until: float) -> int:
        """Number of moves from the first time after `ended` at which the group was balanced, until `until`."""
        ends = [since for since, _ in self.balanced[1:]] + [until]
        spells = ((since, end) for (since, balanced), end in zip(self.balanced, ends, strict=True) if balanced)
        first = next((max(since, ended) for since, end in spells if end > ended), until)
        return sum(first < move < until for move in self.moves)

    def _record_silence(self, silence: float, lease_duration: float) -> None:
        self.longest_silence = max(self.longest_silence, silence / lease_duration)

    def _update(self) -> None:
        now = self._clock()
        self.unowned += self._unserved * (now - self._since)
        self._since = now
        owned = self._ownership.owned
        counts = {name: len(owned.get(name, ())) for name in self._running}
        self._unserved = self._partitions - sum(counts.values())
        balanced = self._is_balanced(counts)
        if not self.balanced or self.balanced[-1][1] != balanced:
            self.balanced.append((now, balanced))

    def _is_balanced(self, counts: Mapping[str, int]) -> bool:
        if self._unserved:
            return sum(counts.values()) == sum(fair_counts(counts, self._partitions, self._running)) and bool(counts)
        if list(counts.values()) == fair_counts(counts, self._partitions, self._running):
            return True
        rates, owned = self._rates(), self._ownership.owned
        if max(rates.values()) == min(rates.values()):
            return False
        loads = {name: sum(rates[p] for p in owned.get(name, ())) for name in counts}
        most, least = max(loads, key=loads.__getitem__), min(loads, key=loads.__getitem__)
        gap = loads[most] - loads[least]
        if loads[most] <= (1 + _TOLERANCE) * fmean(loads.values()):
            return True
        return not any((1 + _TOLERANCE) * rates[p] < gap for p in owned[most])


# --- the ideal strategy, with which real ones are compared -----------------------------------------------------------


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
