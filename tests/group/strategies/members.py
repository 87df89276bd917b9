"""A group of members with real turns, an in-memory store, and a simulated clock.

All members whose turns are due at the same moment decide on the same snapshot and then commit one after another in
random order: the worst possible race.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spark_ehbalance.group.changes import Drain, HandOver, Release, Steal, Transition
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.member.protocol import (
    CommitChanges,
    Committed,
    Fail,
    GroupRead,
    Output,
    PositionsResolved,
    RebalancingBegan,
    RebalancingEnded,
    ResolvePositions,
    StopRequested,
    StoreFailed,
)
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author, Lease, Load, Member, MemberState
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import DECLARATIONS, REACTIVE, STRATEGIES, Strategy
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.memory import MemoryStore
from tests.lease_table.store_conformance import GROUP

#: Seconds, equal to the defaults of the options and `Settings`.
CYCLE, LOOK, HANDOVER_LOOK, LEASE, HANDOVER_TIMEOUT = 10.0, 1.0, 0.2, 30.0, 30.0


START = Position(-1)

OPERATOR = Author("operator", "")


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a partition from `before` to `after` at time `at`: `planned` by a handover, `stolen` by a steal, or
    otherwise by a claim."""

    at: float
    partition: str
    before: str | None
    after: str
    planned: bool
    stolen: bool


@dataclass(slots=True, eq=False)
class Node:
    """A member's process: the time of its next turn, and the current batch of its query."""

    member: MemberEngine
    turn_at: float
    ends_at: float = 0.0
    batch: Mapping[str, Progress] = field(default_factory=dict)
    #: How many times longer than usual it waits between turns.
    slowness: float = 1.0


class Members:
    """The group. Times are seconds on the simulated clock; the seed determines everything."""

    def __init__(
        self,
        partitions: int = 0,
        *,
        seed: int = 0,
        leases: Iterable[Lease] | None = None,
        strategy: str = "cooperative",
        chosen: Mapping[str, Strategy] = STRATEGIES,
    ) -> None:
        self.strategy = strategy
        self._chosen = chosen
        self.rng = random.Random(seed)
        self.now = 1000.0
        made = [Lease(str(number), checkpoint=START) for number in range(partitions)]
        given = made if leases is None else list(leases)
        self.partitions = tuple(lease.partition for lease in given)
        self.store = MemoryStore(Snapshot(GROUP, leases=MappingProxyType({lease.partition: lease for lease in given})))
        self.nodes: dict[str, Node] = {}
        self.moves: list[Move] = []
        self.loads: Callable[[], Mapping[str, Load]] = dict
        #: Whether a commit by this member fails now.
        self.fails: Callable[[str], bool] = lambda name: False
        self._last_owner = {lease.partition: lease.owner for lease in given}
        self._joined = 0

    # --- what happens to the group -----------------------------------------------------------------------------

    def join(self, *names: str, max_owned: int | None = None, slowness: float = 1.0) -> list[str]:
        """Start processes with the current `strategy` at the same moment; without names, one with a new name."""
        names = names or (f"member-{self._joined}",)
        for name in names:
            self._joined += 1
            strategy = self._chosen[self.strategy]
            settings = Settings(
                strategy,
                LEASE,
                HANDOVER_TIMEOUT,
                max_owned,
                strategy_name=self.strategy,
                reactive=self.strategy in REACTIVE,
            )
            member = MemberEngine(Author(name, str(self._joined)), settings, random.Random(self.rng.random()))
            self.nodes[name] = Node(member, turn_at=self.now, slowness=slowness)
        return list(names)

    def join_many(self, count: int) -> list[str]:
        return self.join(*(f"member-{self._joined + index}" for index in range(count)))

    def leave(self, name: str) -> None:
        """Stop gracefully, as `query.stop()` does; a batch in flight is interrupted."""
        node = self.nodes.pop(name)
        node.member.handle(StopRequested(), self._clocks())
        self._commit(node, self._begin(node, self.store.read()))

    def crash(self, name: str) -> None:
        """Die without leaving the group."""
        del self.nodes[name]

    def drain(self, name: str) -> None:
        self.order(Drain(by=OPERATOR, at_ms=self._clocks().wall_ms, member=name))

    def order(self, *orders: Transition) -> None:
        """Commit operators' orders, all of which must be valid."""
        assert not commit(self.store, self.store.read(), orders).rejected

    def add_partitions(self, count: int) -> None:
        self.partitions += tuple(str(len(self.partitions) + index) for index in range(count))

    def begin_batch(self, name: str, seconds: float) -> None:
        """Start a batch of all plannable partitions that takes `seconds`."""
        node = self.nodes[name]
        if not node.batch:
            node.batch = {
                p: Progress(held.epoch, Position(held.checkpoint.sequence_number + 10))
                for p, held in node.member.plannable().items()
            }
            node.member.begin_batch({p: to.epoch for p, to in node.batch.items()}, self.now)
            node.ends_at = self.now + seconds

    # --- time --------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let `seconds` pass."""
        until = self.now + seconds
        nodes = [*self.nodes.values()]
        while nodes and (due := min(map(self._due, nodes))) <= until:
            self.now = max(self.now, due)
            self._turns([node for node in nodes if self._due(node) <= self.now])
        self.now = until

    def cycles(self, count: int) -> None:
        """Run `count` cycles in which every member reads and balances once; faster than `run` if nothing happens."""
        for _ in range(count):
            self.now += CYCLE
            self._turns(list(self.nodes.values()), balance=True)

    # --- what can be seen --------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        return self.store.read()

    def counts(self) -> dict[str, int]:
        """The number of partitions of each running member."""
        return {name: len(self.snapshot.owned_by(name)) for name in self.nodes}

    def layout(self) -> dict[str, tuple[str | None, int]]:
        """The owner and epoch of each partition."""
        return {p: (lease.owner, lease.epoch) for p, lease in self.snapshot.leases.items()}

    # --- inside ------------------------------------------------------------------------------------------------

    def _clocks(self) -> Clocks:
        return Clocks(self.now, round(self.now * 1000))

    @staticmethod
    def _due(node: Node) -> float:
        return min(node.turn_at, node.ends_at) if node.batch else node.turn_at

    def _turns(self, nodes: Sequence[Node], *, balance: bool = False) -> None:
        snapshot, loads = self.store.read(), self.loads()
        turns = []
        for node in nodes:
            if node.batch and node.ends_at <= self.now:
                node.member.finish_batch(node.batch)
                node.batch = {}
            node.member.measure(loads)
            if balance:
                balance_now(node.member, self._clocks())
            turns.append((node, self._begin(node, snapshot)))
        self.rng.shuffle(turns)
        for node, write in turns:
            self._commit(node, write)
            node.turn_at = self.now + node.slowness * max(HANDOVER_LOOK, node.member.due() - self.now)

    def _begin(self, node: Node, snapshot: Snapshot) -> CommitChanges | None:
        """Run a turn up to its commit, if it makes one."""
        return looked(node.member, snapshot, self.partitions, self._clocks())[1]

    def _commit(self, node: Node, write: CommitChanges | None) -> None:
        if write is None:
            return
        if self.fails(node.member.author.id):
            node.member.handle(StoreFailed(writing=True), self._clocks())
            return
        outcome = commit(self.store, self.store.read(), write.changes)
        before, after = outcome.before, outcome.after
        unfailing(node.member.handle(Committed(outcome), self._clocks()))
        handed_over = {transition.partition for transition in outcome.accepted if isinstance(transition, HandOver)}
        stolen = {transition.partition for transition in outcome.accepted if isinstance(transition, Steal)}
        moves = DECLARATIONS[node.member.settings.strategy_name].moves
        assert not stolen or moves == "steal", f"{node.member.settings.strategy_name} does not declare that it steals"
        for partition, lease in after.leases.items():
            earlier = before.leases.get(partition)
            if earlier is lease:
                continue
            self._check(earlier, lease, handed_over | stolen)
            if lease.owner is not None and lease.owner != self._last_owner.get(partition):
                last = self._last_owner.get(partition)
                how = partition in handed_over, partition in stolen
                self.moves.append(Move(self.now, partition, last, lease.owner, *how))
                self._last_owner[partition] = lease.owner
        for release in (transition for transition in outcome.accepted if isinstance(transition, Release)):
            assert release.partition in node.member.owned or after.leases[release.partition].owner is None

    def _check(self, before: Lease | None, after: Lease, given: set[str]) -> None:
        """Assert that a running owner that renews its lease loses it only through a handover, a steal, or an overdue
        handover."""
        if before is None or before.owner in (None, after.owner) or after.owner is None:
            return
        node = self.nodes.get(before.owner or "")
        if node is None or after.partition in given:
            return
        if self._clocks().wall_ms - before.renewed_at_ms >= LEASE * 1000:
            return  # the owner could not renew
        handover = before.handover
        assert handover is not None, f"{after.owner} took partition {after.partition} from the living {before.owner}"
        assert handover.to == after.owner
        assert self._clocks().wall_ms - handover.requested_at_ms >= handover.timeout_ms, "before the deadline"


def looked(
    member: MemberEngine, snapshot: Snapshot, partitions: Sequence[str], now: Clocks, start: Position = START
) -> tuple[list[Output], CommitChanges | None]:
    """Run a turn of `member` up to its commit; the hub's `partitions` begin at `start`. Returns outputs and write.
    Raises the member's error."""
    outputs = unfailing(member.handle(GroupRead(snapshot, tuple(partitions)), now))
    if request := next((output for output in outputs if isinstance(output, ResolvePositions)), None):
        outputs = unfailing(member.handle(PositionsResolved(dict.fromkeys(request.partitions, start)), now))
    return outputs, next((output for output in outputs if isinstance(output, CommitChanges)), None)


def balance_now(member: MemberEngine, now: Clocks) -> None:
    """Make the next turn of `member` balance, even if not due."""
    settling = member.rebalancing
    member.handle(RebalancingBegan(), now)
    if not settling:
        member.handle(RebalancingEnded(), now)


def unfailing(outputs: list[Output]) -> list[Output]:
    for output in outputs:
        if isinstance(output, Fail):
            raise output.error
    return outputs


def layout_of(owners: Sequence[str | None]) -> list[Lease]:
    """Leases from an earlier run of the group with these owners."""
    return [
        Lease(str(number), owner=owner, epoch=1, renewed_at_ms=1_000_000, checkpoint=START)
        for number, owner in enumerate(owners)
    ]


def snapshot_of(
    members: Mapping[str, int | None] | Iterable[str],
    leases: Iterable[Lease],
    *,
    leaving: Iterable[str] = (),
) -> Snapshot:
    """A group's state with these leases and members, oldest first, with their limits."""
    limits = dict(members) if isinstance(members, Mapping) else dict.fromkeys(members)
    rows = {id: Member(id, "1", joined=number, max_owned=limit) for number, (id, limit) in enumerate(limits.items(), 1)}
    rows |= {id: replace(rows[id], state=MemberState.LEAVING) for id in leaving}
    by_partition = MappingProxyType({lease.partition: lease for lease in leases})
    return Snapshot(GROUP, 1, by_partition, MappingProxyType(rows))
