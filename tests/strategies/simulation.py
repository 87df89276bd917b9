"""A group in rounds, without clocks or I/O: each live member decides once a round, and `apply` carries it out.

A round is one balance interval. Who crashes is noticed a few rounds later, by everybody at once. A member may act on
a view from some rounds ago, as one does that has lost a race and has not re-read yet.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spark_ehbalance.leases.model import Author, Lease
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    Claim,
    Heartbeat,
    Join,
    Leave,
    Release,
    Renew,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.strategies import STRATEGIES, Decision, View
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

#: Rounds until a crashed member's leases count as expired.
EXPIRY = 3
#: A cycle that wants to go on at once for more often than this does not come to an end.
ENDLESS = 200


@dataclass(slots=True)
class Process:
    """A member of the simulated group."""

    author: Author
    rng: random.Random
    max_owned: int | None = None


@dataclass(slots=True)
class Round:
    """What happened in a round: each member's decisions, and the transitions that were accepted."""

    decisions: dict[str, list[Decision]] = field(default_factory=dict)
    moves: list[Claim | Steal] = field(default_factory=list)


class Simulation:
    """A group under one strategy, reproducible from its seed."""

    def __init__(self, strategy: str, *, partitions: int, seed: int = 0) -> None:
        self._strategy = STRATEGIES[strategy]
        self._rng = random.Random(seed)
        self._live: dict[str, Process] = {}
        self._crashed: dict[str, int] = {}
        self._round = 0
        self._joined = 0
        self.snapshot = Snapshot(Group("namespace", "hub", "$default"))
        self._history = [self.snapshot]
        self._operator = Author("operator", "1")
        self._write([Join(by=self._operator, at_ms=0)])
        self.add_partitions(partitions)

    # --- what happens to the group -----------------------------------------------------------------------------

    def add_partitions(self, count: int) -> None:
        known = len(self.snapshot.leases)
        names = tuple(str(number) for number in range(known, known + count))
        if names:
            self._write([AddPartitions(by=self._operator, at_ms=0, partitions=names, checkpoint=Position(-1))])

    def join(self, count: int = 1, *, max_owned: int | None = None) -> list[str]:
        """`count` new members, each with its own random generator."""
        names = []
        for _ in range(count):
            author = Author(f"member-{self._joined}", "1")
            self._joined += 1
            self._live[author.id] = Process(author, random.Random(self._rng.random()), max_owned)
            self._write([Join(by=author, at_ms=0)])
            names.append(author.id)
        return names

    def leave(self, name: str) -> None:
        """Gracefully: the leases are free at once."""
        author = self._live.pop(name).author
        leases = self.snapshot.owned_by(name)
        releases = [Release(by=author, at_ms=0, partition=lease.partition, epoch=lease.epoch) for lease in leases]
        self._write([*releases, Leave(by=author, at_ms=0)])

    def crash(self, name: str) -> None:
        """Without a word: the leases stay until they expire."""
        del self._live[name]
        self._crashed[name] = self._round

    def give(self, owners: Iterable[str | None]) -> None:
        """An arbitrary layout to begin with: the owner of each partition, in their order."""
        leases = {
            partition: replace(lease, owner=owner, epoch=lease.epoch + 1)
            for (partition, lease), owner in zip(self.snapshot.leases.items(), owners, strict=True)
        }
        self.snapshot = replace(self.snapshot, leases=MappingProxyType({**self.snapshot.leases, **leases}))

    # --- rounds ------------------------------------------------------------------------------------------------

    def round(self, *, stalest: int = 0) -> Round:
        """Each live member decides once, in random order, on a view that is up to `stalest` rounds old; with 0 it
        sees the newest state."""
        self._round += 1
        self._history = [*self._history, self.snapshot][-8:]
        happened = Round()
        names = list(self._live)
        self._rng.shuffle(names)
        for name in names:
            decisions = happened.decisions[name] = []
            age = self._rng.randint(0, stalest)
            seen = self.snapshot if age == 0 else self._history[-min(age, len(self._history))]
            while True:
                decision = self._decide(self._live[name], seen)
                decisions.append(decision)
                happened.moves += self._say(self._live[name], seen, decision)
                if not decision.rebalance_now:
                    break
                assert len(decisions) < ENDLESS, f"{name} does not come to an end"
                seen = self.snapshot
        return happened

    def settle(self, *, within: int, stalest: int = 0) -> int:
        """Go on until a round moves nothing and nothing is left to expire; how many rounds that took."""
        for number in range(within):
            waiting = any(lease.owner in self._crashed for lease in self.snapshot.leases.values())
            if not self.round(stalest=stalest).moves and not waiting:
                return number
        raise AssertionError(f"still moving after {within} rounds: {self.counts()}")

    # --- what can be seen --------------------------------------------------------------------------------------

    @property
    def live(self) -> list[str]:
        return list(self._live)

    def counts(self) -> list[int]:
        """How many partitions each live member owns, fewest first."""
        return sorted(len(self.snapshot.owned_by(name)) for name in self._live)

    # --- inside ------------------------------------------------------------------------------------------------

    def _decide(self, process: Process, seen: Snapshot) -> Decision:
        expired = {name for name, crashed in self._crashed.items() if self._round - crashed > EXPIRY}
        view = View(
            me=process.author,
            at_ms=self._round,
            snapshot=seen,
            expired=frozenset(partition for partition, lease in seen.leases.items() if lease.owner in expired),
            live=frozenset(seen.members.keys() - expired),
            rng=process.rng,
            max_owned=process.max_owned,
        )
        return self._strategy(view)

    def _say(self, process: Process, seen: Snapshot, decision: Decision) -> list[Claim | Steal]:
        """One commit, as the keeper makes it: heartbeat, renewals, decision. Returns the moves that came about."""
        author = process.author
        renewals = [
            Renew(by=author, at_ms=self._round, partition=lease.partition, epoch=lease.epoch)
            for lease in seen.owned_by(author.id)
        ]
        refused = self._write([Heartbeat(by=author, at_ms=self._round), *renewals, *decision.transitions])
        moves = [move for move in decision.transitions if isinstance(move, (Claim, Steal))]
        assert len(moves) == len(decision.transitions), "these strategies only claim and steal"
        return [move for move in moves if move not in refused]

    def _write(self, transitions: list[Transition]) -> list[Transition]:
        """Apply `transitions` one by one and check each change of owner; those that were refused."""
        refused: list[Transition] = []
        for transition in transitions:
            before = self.snapshot
            outcome = apply(before, [transition])
            self.snapshot = outcome.after
            refused += [each.transition for each in outcome.refused]
            if outcome.accepted and isinstance(transition, (Claim, Steal)):
                self._check(before.leases[transition.partition], transition)
        return refused

    def _check(self, before: Lease, move: Claim | Steal) -> None:
        """A live owner loses a lease only by a steal, and nobody takes from itself."""
        if isinstance(move, Claim):
            assert before.owner not in self._live, f"{move.by.id} claimed what {before.owner} holds"
        else:
            assert before.owner != move.by.id
        after = self.snapshot.leases[move.partition]
        assert (after.owner, after.epoch) == (move.by.id, before.epoch + 1)
