"""Compares successive looks at the leases: moves, gaps without an owner, broken rules. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.model import Lease
from spark_ehbalance.values.position import partition_order


@dataclass(frozen=True)
class Move:
    """A change of a partition's owner between two looks; None is no owner."""

    partition: str
    before: str | None
    after: str | None
    epoch: int


@dataclass
class Ownership:
    """What all looks at the leases have shown so far. Times are seconds of one clock."""

    queries: Collection[str]
    leases: Mapping[str, Lease] = field(default_factory=dict)
    moves: int = 0  # of partitions that had an owner before
    looks: int = 0  # since the first partition had an owner
    looks_with_a_gap: int = 0  # those in which a partition had no owner
    longest_gap: float = 0.0
    violations: list[str] = field(default_factory=list)
    over: bool = False  # partitions need no owner any more: looks and gaps no longer count
    _began: bool = False
    _unowned_since: dict[str, float] = field(default_factory=dict)
    _had: dict[str, str] = field(default_factory=dict)  # the last owner of each partition

    def see(self, leases: Mapping[str, Lease], at: float) -> list[Move]:
        """Add a look. Returns the moves since the last one."""
        moves = []
        self.violations += [f"partition {p} is gone" for p in self.leases.keys() - leases.keys()]
        for partition, lease in leases.items():
            before = self.leases.get(partition, Lease(partition))
            self.violations += [f"partition {partition}: {broken}" for broken in self._broken(before, lease)]
            if lease.owner != before.owner:
                moves.append(Move(partition, before.owner, lease.owner, lease.epoch))
            if lease.owner is not None:
                self.moves += self._had.get(partition, lease.owner) != lease.owner
                self._had[partition] = lease.owner
        self.leases = leases
        if not self.over:
            self._measure(at)
        return moves

    def owned_by(self, query: str | None) -> list[str]:
        """The partitions of a query; with None, those without an owner."""
        return [partition for partition, lease in self.leases.items() if lease.owner == query]

    def _broken(self, before: Lease, after: Lease) -> list[str]:
        broken = []
        if after.owner is not None and after.owner not in self.queries:
            broken.append(f"owned by {after.owner}, which is none of {', '.join(self.queries)}")
        if after.epoch < before.epoch:
            broken.append(f"the epoch fell from {before.epoch} to {after.epoch}")
        if None is not after.owner != before.owner and after.epoch == before.epoch:
            broken.append(f"owned by {before.owner or 'nobody'}, then by {after.owner}, both with epoch {after.epoch}")
        if before.checkpoint and (not after.checkpoint or after.checkpoint.next < before.checkpoint.next):
            broken.append(f"the checkpoint fell from {before.checkpoint.next}")
        return broken

    def _measure(self, at: float) -> None:
        unowned = self.owned_by(None)
        self._began = self._began or len(unowned) < len(self.leases)
        if not self._began:
            return
        self.looks += 1
        self.looks_with_a_gap += bool(unowned)
        # A gap lasts from the first look without an owner to this one.
        for partition in unowned:
            self._unowned_since.setdefault(partition, at)
        self.longest_gap = max(self.longest_gap, *(at - since for since in self._unowned_since.values()), 0.0)
        self._unowned_since = {p: since for p, since in self._unowned_since.items() if p in unowned}


def described(moves: Collection[Move]) -> list[str]:
    """One line for each group of equal moves."""
    kinds: dict[tuple[str, str], list[Move]] = {}
    for move in moves:
        kinds.setdefault((move.before or "nobody", move.after or "nobody"), []).append(move)
    lines = []
    for (before, after), alike in kinds.items():
        names = ", ".join(sorted((move.partition for move in alike), key=partition_order))
        epochs = ", ".join(map(str, sorted({move.epoch for move in alike})))
        lines.append(f"partition{'s'[: len(alike) > 1]} {names}: {before} → {after}, epoch {epochs}")
    return lines
