"""A group of real `Membership`s on a store in memory, with one made-up clock: the keeper's work without its waiting.

Everybody looks once a second, or five times a second while a handover concerns it, and balances every ten seconds, or
as soon as something has changed if its strategy is a prompt one. All who are due at the same moment decide on the same
snapshot, and then their commits come one after the other in random order: the hardest race that there can be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spark_ehbalance.leases.model import Author, Lease, Load, Member, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Claim, Drain, HandOver, Refused, Release, Steal, Transition
from spark_ehbalance.member.membership import Clocks, Membership, Progress, Settings, unread, with_starts
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.memory import MemoryStore
from spark_ehbalance.strategies import REACTIVE, STRATEGIES, Strategy
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

#: Seconds, as in the keeper and in the options' defaults.
CYCLE, LOOK, HANDOVER_LOOK, LEASE, HANDOVER_TIMEOUT = 10.0, 1.0, 0.2, 30.0, 30.0
JITTER = (0.8, 1.2)

OPERATOR = Author("operator", "")

#: Events that a batch reads of each of its partitions.
BATCH = 10


@dataclass(frozen=True, slots=True)
class Move:
    """A partition has come to `after` at time `at`; `before` had it last. `planned`: by a handover."""

    at: float
    partition: str
    before: str | None
    after: str
    planned: bool


@dataclass(slots=True)
class Node:
    """A member's process: its membership, when it looks next, and the batch that its query is at."""

    membership: Membership
    look_at: float
    balance_at: float = 0.0
    ends_at: float = 0.0
    batch: Mapping[str, Progress] = field(default_factory=dict)
    frozen: bool = False
    #: How many times as long as others it takes between its looks.
    slowness: float = 1.0


class Members:
    """The group. Times are seconds on the one clock; everything follows from the seed."""

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
        made = [Lease(str(number), checkpoint=Position(-1)) for number in range(partitions)]
        given = made if leases is None else list(leases)
        self.partitions = tuple(lease.partition for lease in given)
        group = Group("namespace", "hub", "$default")
        self.store = MemoryStore(Snapshot(group, leases=MappingProxyType({each.partition: each for each in given})))
        self.nodes: dict[str, Node] = {}
        self.moves: list[Move] = []
        #: (partition, first, last + 1) of everything that a sink has finished.
        self.read: list[tuple[str, int, int]] = []
        self.loads: Callable[[], Mapping[str, Load]] = dict
        #: Told of every commit: the state before and after it.
        self.wrote: Callable[[Snapshot, Snapshot], None] = lambda before, after: None
        self._last_owner = {each.partition: each.owner for each in given}
        self._joined = 0

    # --- what happens to the group -----------------------------------------------------------------------------

    def join(self, *names: str, max_owned: int | None = None, slowness: float = 1.0) -> list[str]:
        """New processes of the strategy that `strategy` names by now, which begin at the same moment; without names one
        with a new name."""
        names = names or (f"member-{self._joined}",)
        for name in names:
            self._joined += 1
            strategy = self._chosen[self.strategy]
            settings = Settings(strategy, LEASE, HANDOVER_TIMEOUT, max_owned, strategy_name=self.strategy)
            membership = Membership(Author(name, str(self._joined)), settings, random.Random(self.rng.random()))
            self.nodes[name] = Node(membership, look_at=self.now, slowness=slowness)
        return list(names)

    def join_many(self, count: int, *, max_owned: int | None = None) -> list[str]:
        return self.join(*(f"member-{self._joined + each}" for each in range(count)), max_owned=max_owned)

    def leave(self, name: str) -> None:
        """Stop in good order, as `query.stop()` does: a batch in flight is broken off."""
        node = self.nodes.pop(name)
        self._write(node, node.membership.farewell(self._clocks()))

    def crash(self, name: str) -> None:
        """Without a word."""
        del self.nodes[name]

    def freeze(self, name: str) -> None:
        """The process stands still, its batch in flight with it."""
        self.nodes[name].frozen = True

    def thaw(self, name: str) -> None:
        """It goes on where it stood still."""
        node = self.nodes[name]
        node.frozen, node.look_at = False, self.now

    def drain(self, name: str, *, undo: bool = False) -> None:
        """By an operator, also where that changes nothing."""
        self.order_if_valid(Drain(by=OPERATOR, at_ms=self._clocks().wall_ms, member=name, undo=undo))

    def order(self, *orders: Transition) -> None:
        """By an operator; all of it must be valid."""
        assert not self.order_if_valid(*orders)

    def order_if_valid(self, *orders: Transition) -> tuple[Refused, ...]:
        """By an operator; what was refused."""
        outcome = commit(self.store, self.store.read(), orders)
        self.wrote(outcome.before, outcome.after)
        return outcome.refused

    def add_partitions(self, count: int) -> None:
        self.partitions += tuple(str(len(self.partitions) + each) for each in range(count))

    def begin_batch(self, name: str, seconds: float) -> None:
        """Plan a batch with everything that may be planned with; it takes `seconds`."""
        node = self.nodes[name]
        if not node.batch:
            plannable = node.membership.plannable()
            node.batch = {
                p: Progress(held.epoch, Position(held.checkpoint.sequence_number + BATCH))
                for p, held in plannable.items()
            }
            node.membership.in_flight = frozenset(node.batch)
            node.ends_at = self.now + seconds

    # --- time --------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let `seconds` pass."""
        until = self.now + seconds
        awake = [node for node in self.nodes.values() if not node.frozen]
        while awake and (due := min(map(self._due, awake))) <= until:
            self.now = max(self.now, due)
            self._turns([node for node in awake if self._due(node) <= self.now])
        self.now = until

    def cycles(self, count: int) -> None:
        """`count` cycles in which everybody looks once and balances: quicker than `run` where nothing happens."""
        for _ in range(count):
            self.now += CYCLE
            for node in self.nodes.values():
                node.balance_at = self.now
            self._turns(list(self.nodes.values()))

    def claims_of_one_snapshot(self) -> list[Claim]:
        """What everybody would claim if all decided at this moment."""
        clocks, snapshot = self._clocks(), self.store.read()
        claims = []
        for node in self.nodes.values():
            node.membership.see(snapshot, clocks)
            said, _ = node.membership.balance(snapshot, clocks, self.partitions, lambda p: Position(-1))
            claims += [each for each in said if isinstance(each, Claim)]
        return claims

    # --- what can be seen --------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        return self.store.read()

    def counts(self) -> dict[str, int]:
        """How many partitions each running member owns."""
        return {name: len(self.snapshot.owned_by(name)) for name in self.nodes}

    def layout(self) -> dict[str, tuple[str | None, int]]:
        """Owner and epoch of each partition."""
        return {p: (lease.owner, lease.epoch) for p, lease in self.snapshot.leases.items()}

    def planned_moves(self) -> list[Move]:
        return [move for move in self.moves if move.planned]

    # --- inside ------------------------------------------------------------------------------------------------

    def _clocks(self) -> Clocks:
        return Clocks(self.now, round(self.now * 1000))

    @staticmethod
    def _due(node: Node) -> float:
        return min(node.look_at, node.ends_at) if node.batch else node.look_at

    def _turns(self, nodes: Sequence[Node]) -> None:
        snapshot, clocks, loads = self.store.read(), self._clocks(), self.loads()
        said: list[tuple[Node, list[Transition], float | None]] = []
        for node in nodes:
            if node.batch and node.ends_at <= self.now:
                self._end_batch(node)
            node.membership.see(snapshot, clocks)
            node.membership.measure(loads)
            reactive, after = node.membership.settings.strategy_name in REACTIVE, None
            if clocks.monotonic >= node.balance_at or (reactive and node.membership.unsettled(snapshot, clocks)):
                transitions, decision = node.membership.balance(
                    snapshot, clocks, self.partitions, lambda p: Position(-1)
                )
                transitions = with_starts(transitions, dict.fromkeys(unread(transitions, snapshot), Position(-1)))
                after = decision.rebalance_after
                after = after or (0.0 if decision.rebalance_now else None)
                wait = self._jittered(CYCLE)
                node.balance_at = self.now + min(wait, wait if after is None else after)
            else:
                transitions = node.membership.say(snapshot, clocks)
            said.append((node, transitions, after))
        self.rng.shuffle(said)
        for node, transitions, after in said:
            wait = HANDOVER_LOOK if node.membership.waits(self._write(node, transitions)) else LOOK
            wait = HANDOVER_LOOK if node.balance_at <= self.now else self._jittered(wait)
            node.look_at = self.now + node.slowness * min(wait, wait if after is None else after)

    def _end_batch(self, node: Node) -> None:
        for partition, done in node.batch.items():
            node.membership.finish(partition, done)
            last = done.position.sequence_number + 1
            self.read.append((partition, last - BATCH, last))
        node.batch = {}
        node.membership.in_flight = frozenset()

    def _write(self, node: Node, said: list[Transition]) -> Snapshot:
        outcome = commit(self.store, self.store.read(), said)
        before, after = outcome.before, outcome.after
        node.membership.written(outcome, self._clocks())
        self.wrote(before, after)
        handed_over = {each.partition for each in outcome.accepted if isinstance(each, HandOver)}
        stolen = {each.partition for each in outcome.accepted if isinstance(each, Steal)}
        for partition, lease in after.leases.items():
            earlier = before.leases.get(partition)
            if earlier is lease:
                continue
            self._check(earlier, lease, handed_over | stolen)
            if lease.owner is not None and lease.owner != self._last_owner.get(partition):
                last = self._last_owner.get(partition)
                self.moves.append(Move(self.now, partition, last, lease.owner, partition in handed_over))
                self._last_owner[partition] = lease.owner
        for release in (each for each in outcome.accepted if isinstance(each, Release)):
            assert release.partition in node.membership.holdings or after.leases[release.partition].owner is None
        return after

    def _check(self, before: Lease | None, after: Lease, given: set[str]) -> None:
        """A running, unhindered owner that renews its lease loses it only to whom it is given by a handover or a steal,
        or after the deadline of a handover."""
        if before is None or before.owner in (None, after.owner) or after.owner is None:
            return
        node = self.nodes.get(before.owner or "")
        if node is None or node.frozen or after.partition in given:
            return
        if self._clocks().wall_ms - before.renewed_at_ms >= LEASE * 1000:
            return  # it stood still until now
        promised = before.handover
        assert promised is not None, f"{after.owner} took partition {after.partition} from the living {before.owner}"
        assert promised.to == after.owner
        assert self._clocks().wall_ms - promised.requested_at_ms >= promised.timeout_ms, "before the deadline"

    def _jittered(self, interval: float) -> float:
        return interval * self.rng.uniform(*JITTER)


def layout_of(owners: Sequence[str | None]) -> list[Lease]:
    """Leases as an earlier life of the group has left them: the owner of each partition, in their order."""
    return [
        Lease(str(number), owner=owner, epoch=1, renewed_at_ms=1_000_000, checkpoint=Position(-1))
        for number, owner in enumerate(owners)
    ]


def snapshot_of(
    members: Mapping[str, int | None] | Iterable[str],
    leases: Iterable[Lease],
    *,
    leaving: Iterable[str] = (),
) -> Snapshot:
    """A group's state: members in the order of their age, with their limits where given, and leases."""
    limits = dict(members) if isinstance(members, Mapping) else dict.fromkeys(members)
    rows = {id: Member(id, "1", joined=number, max_owned=limit) for number, (id, limit) in enumerate(limits.items(), 1)}
    rows |= {id: replace(rows[id], state=MemberState.LEAVING) for id in leaving}
    by_partition = MappingProxyType({lease.partition: lease for lease in leases})
    return Snapshot(Group("namespace", "hub", "$default"), 1, by_partition, MappingProxyType(rows))
