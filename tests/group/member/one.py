"""A single member with an in-memory table and a clock that the test moves, without threads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spark_ehbalance.group.changes import Join, Rejected, RequestHandover, Transition, apply
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.member.protocol import (
    CommitChanges,
    CommitEnded,
    Committed,
    DecisionMade,
    Left,
    Output,
    StopRequested,
)
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.group.strategies.base import Decision
from tests.group.strategies.members import LEASE, balance_now, looked, snapshot_of, unfailing
from tests.lease_table.store_conformance import ANN, BOB

OPERATOR = Author("operator", "")
AT_MS = 0
START = Position(-1)


class Turn:
    """The outputs of a turn before its commit."""

    def __init__(self, outputs: Sequence[Output], write: CommitChanges | None) -> None:
        self.decision: Decision | None = next((x.decision for x in outputs if isinstance(x, DecisionMade)), None)
        self.transitions = list(write.changes) if write else []
        #: Whether the turn waits for its commit; otherwise, it has ended.
        self.writes = write is not None
        self.tidies = any(output.tidies for output in outputs if isinstance(output, CommitEnded))

    @property
    def balances(self) -> bool:
        return self.decision is not None


class One:
    """ann, who owns all partitions, and the table, to which `others` write between her reads."""

    def __init__(self, partitions: int = 2, strategy: str = "greedy", **settings: Any) -> None:
        self.now = 1000.0
        self.table = snapshot_of((), [Lease(str(p), checkpoint=START) for p in range(partitions)])
        self.ann = member(strategy, **settings)
        self.refused: list[Rejected] = []
        self.stopping = False
        for _ in ("join", "claim", "rest"):
            self.turn(balance=True)
        assert len(self.ann.owned) == partitions

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.now, round(self.now * 1000))

    def begin(self, *, balance: bool = False, hub: Sequence[str] = (), start: Position = START) -> Turn:
        """Run a turn up to its commit; with `balance`, it balances even if not due. The hub has the table's partitions
        and those in `hub`, which begin at `start`."""
        if balance:
            balance_now(self.ann, self.clocks)
        return Turn(*looked(self.ann, self.table, (*self.table.leases, *hub), self.clocks, start))

    def end(self, turn: Turn, *, seconds: float = 0.0) -> list[Transition]:
        """Commit the turn and return its transitions."""
        self.refused = []
        if turn.writes:
            outcome = apply(self.table, turn.transitions)
            self.refused = [*outcome.rejected]
            if outcome.after is not outcome.before:
                after = replace(outcome.after, version=self.table.version + 1)
                outcome = replace(outcome, after=after, seconds=seconds)
            self.table = outcome.after
            ended = unfailing(self.ann.handle(Committed(outcome, seconds), self.clocks))
            turn.tidies = any(input.tidies for input in ended if isinstance(input, CommitEnded))
            assert (Left() in ended) is self.stopping
        return turn.transitions

    def turn(self, *, balance: bool = False, hub: Sequence[str] = ()) -> list[Transition]:
        """Run a turn and return its transitions."""
        transitions = self.end(self.begin(balance=balance, hub=hub))
        assert not self.refused
        return transitions

    def stop(self) -> list[Transition]:
        """Run the last turn and return its transitions."""
        self.stopping = True
        self.ann.handle(StopRequested(), self.clocks)
        return self.end(self.begin())

    def reserve(self, *partitions: str) -> None:
        """Start a batch."""
        epochs = {p: self.ann.owned[p].epoch for p in partitions}
        assert self.ann.begin_batch(epochs, self.now) == set(partitions)

    def finish(self, to: int, *partitions: str) -> None:
        """End the batch after the sink finished `partitions` up to these sequence numbers."""
        self.ann.finish_batch({p: Progress(1, Position(to)) for p in partitions})

    def others(self, *transitions: Transition) -> None:
        outcome = apply(self.table, transitions)
        assert not outcome.rejected
        self.replace_table(outcome.after)

    def add(self, *leases: Lease) -> None:
        self.replace_table(replace(self.table, leases={**self.table.leases, **{p.partition: p for p in leases}}))

    def replace_table(self, table: Snapshot) -> None:
        self.table = replace(table, version=self.table.version + 1)

    def request(self, partition: str) -> None:
        """Let bob join, unless he has already, and request a handover."""
        if BOB.id not in self.table.members:
            self.others(Join(by=BOB, at_ms=AT_MS))
        epoch = self.table.leases[partition].epoch
        self.others(
            RequestHandover(by=BOB, at_ms=AT_MS, partition=partition, epoch=epoch, to=BOB.id, timeout_ms=30_000)
        )


def member(strategy: str = "greedy", **settings: Any) -> MemberEngine:
    names = ("query", "resume", "latest_ms", "ends", "checked")
    arguments = {name: settings.pop(name) for name in names if name in settings}
    return MemberEngine(ANN, Settings(STRATEGIES[strategy], LEASE, **settings), random.Random(0), **arguments)


def kinds(transitions: Sequence[Transition]) -> list[str]:
    return [type(transition).__name__ for transition in transitions]
