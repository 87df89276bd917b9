"""Invariants of a group, and a group with random events."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import inf

from spark_ehbalance.group.commands import PinTo, Transfer, Unpin
from spark_ehbalance.group.model import Member, MemberState
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import DECLARATIONS
from tests.group.strategies.members import CYCLE, HANDOVER_TIMEOUT, JITTER, LEASE, LOOK, OPERATOR, Members, layout_of

#: The maximum seconds between two reads, and between two decisions.
LONGEST_LOOK, LONGEST_CYCLE = JITTER[1] * LOOK, JITTER[1] * CYCLE

#: Seconds until all members know that one is gone: they read its last heartbeat at their next read, and then no change
#: for the lease duration.
NOTICED = LONGEST_LOOK + LEASE

#: Seconds until a member has decided and another has handed over the requested partitions: most strategies decide once
#: a cycle, and a request is noticed at the next read.
DECIDED = LONGEST_CYCLE + LONGEST_LOOK


class Rules:
    """Checks `group`; `look` must be called often."""

    def __init__(self, group: Members) -> None:
        self._group = group
        self._epochs: dict[str, tuple[int, str | None]] = {}
        self._unread: dict[str, float] = {}  # the time since when no running member has owned the partition
        self._pending: dict[
            str, float
        ] = {}  # the time since when a running owner has not read it because of a handover
        self._calm = group.now
        group.wrote = self.wrote

    def disturbed(self) -> None:
        """Restart all waits, because the group changed."""
        self._calm = self._group.now

    def wrote(self, before: Snapshot, after: Snapshot) -> None:
        for partition, lease in after.leases.items():
            epoch, owner = self._epochs.get(partition, (0, None))
            assert lease.epoch >= epoch, f"partition {partition}: the epoch falls from {epoch} to {lease.epoch}"
            if lease.epoch == epoch and lease.owner is not None and owner is not None:
                assert lease.owner == owner, f"partition {partition}: {owner} and {lease.owner} have epoch {epoch}"
            self._epochs[partition] = (lease.epoch, lease.owner or (owner if lease.epoch == epoch else None))
        for id, member in after.members.items():
            owned = len(after.owned_by(id))
            assert member.max_owned is None or owned <= member.max_owned, f"{id} owns {owned} of {member.max_owned}"

    def look(self) -> None:
        """Assert that no partition is unread for too long, except partitions that no member has room for, and that no
        handover is pending for too long."""
        now, snapshot = self._group.now, self._group.snapshot
        running = self._running()
        leases = {p: snapshot.leases.get(p) for p in self._group.partitions}
        unread = [p for p, lease in leases.items() if lease is None or lease.owner not in running]
        pending = [p for p, lease in leases.items() if lease and lease.handover and lease.owner in running]
        self._unread = {p: self._unread.get(p, now) for p in unread}
        self._pending = {p: self._pending.get(p, now) for p in pending}
        waits = sorted((now - max(since, self._calm) for since in self._unread.values()), reverse=True)
        waits = waits[self._without_room() :]
        handovers = [now - max(since, self._calm) for since in self._pending.values()]
        assert not waits or waits[0] <= self.patience(), (
            f"unread for {waits[0]:g} s: {unread}, {self._group.counts()}, {snapshot.members}"
        )
        longest = max(NOTICED, HANDOVER_TIMEOUT + LONGEST_LOOK) + DECIDED
        assert not handovers or max(handovers) <= longest, f"pending for {max(handovers):g} s: {pending}"

    def patience(self) -> float:
        """How long a partition can be unread: NOTICED + DECIDED, or one cycle per partition in a group whose members
        claim one partition per cycle."""
        names = {member.strategy for member in self._able()}
        slow = len(names) == 1 and DECLARATIONS[min(names)].one_per_cycle
        cycles = len(self._group.partitions) if slow else 1
        return NOTICED + cycles * DECIDED

    def is_even(self) -> bool:
        """Whether every partition that a member has room for is owned, members with room follow pins, and no member
        owns two unpinned partitions more than another with room. Transfers have ended."""
        snapshot = self._group.snapshot
        owned = {row.id: snapshot.owned_by(row.id) for row in self._able()}
        room = {row.id: row.max_owned is None or len(owned[row.id]) < row.max_owned for row in self._able()}
        if sum(map(len, owned.values())) != len(self._group.partitions) - self._without_room():
            return False
        for partition, pin in snapshot.ownership.pins.items():
            followed = snapshot.leases[partition].owner == pin.to
            if pin.transfer if followed else room.get(pin.to):
                return False
        least = min((len(owned[id]) for id in owned if room[id]), default=inf)
        return all(
            len(theirs) <= least + 1 or all(lease.pin and lease.pin.to == id for lease in theirs)
            for id, theirs in owned.items()
        )

    def _without_room(self) -> int:
        """The number of partitions that no member has room for."""
        room = sum(inf if member.max_owned is None else member.max_owned for member in self._able())
        return int(max(0, len(self._group.partitions) - room))

    def _able(self) -> list[Member]:
        """The running members that are not leaving."""
        members = self._group.snapshot.members.values()
        return [member for member in members if member.id in self._running() and member.state is MemberState.ACTIVE]

    def _running(self) -> set[str]:
        return {name for name, node in self._group.nodes.items() if not node.frozen}


class RandomEvents:
    """Random events in a group: members with any of `strategies` join with or without limits, leave, crash, pause,
    resume, and restart with another strategy and limit; operators pin, transfer, unpin and drain."""

    def __init__(self, seed: int, strategies: Sequence[str]) -> None:
        """One member of each strategy returns to a random layout at the same moment, or finds a new group."""
        self.rng = rng = random.Random(f"{seed} fate")
        self.strategies = strategies
        owners = rng.choice([[None], [*(f"member-{number}" for number in range(len(strategies))), "gone", None]])
        layout = layout_of(rng.choices(owners, k=rng.randint(1, 20)))
        self.group = Members(seed=seed, leases=layout)
        self.rules = Rules(self.group)
        for number, name in enumerate(strategies):
            self._start(f"member-{number}", name)

    def play(self, events: int) -> None:
        """Play `count` events, in quick succession or with pauses; then the group rests."""
        for _ in range(events):
            getattr(self, "_" + self.rng.choice(_HAPPENINGS))()
            self.rules.disturbed()
            self.run(self.rng.choice((0.0, 1.0, 15.0, 60.0)))
        for name in [name for name, node in self.group.nodes.items() if node.frozen]:
            self._go_on(name)
        if not self.group.nodes:
            self._join()
        self.run(self.rules.patience() + DECIDED)

    def run(self, seconds: float) -> None:
        """Let time pass while queries run batches, and check the rules every second."""
        for _ in range(round(seconds)):
            for name in self._some(lambda name: not self._frozen(name)):
                self.group.begin_batch(name, self.rng.uniform(1, 20))
            self.group.run(1.0)
            self.rules.look()

    def _start(self, name: str, strategy: str) -> None:
        self.group.strategy = strategy
        limit = self.rng.choice((None, None, 1, 2, 3, 5, 8))
        self.group.join(name, max_owned=limit)
        self.rules.disturbed()

    def _some(self, fits: Callable[[str], bool] = lambda name: True) -> list[str]:
        """A random suitable member, if there is one."""
        able = [name for name in self.group.nodes if fits(name)]
        return [self.rng.choice(able)] if able else []

    def _frozen(self, name: str) -> bool:
        return self.group.nodes[name].frozen

    def _join(self) -> None:
        if len(self.group.nodes) < 6:
            self._start(f"member-{self.rng.randrange(1000)}", self.rng.choice(self.strategies))

    def _leave(self) -> None:
        for name in self._some(lambda name: not self._frozen(name)):
            self.group.leave(name)

    def _crash(self) -> None:
        for name in self._some():
            self.group.crash(name)

    def _restart(self) -> None:
        for name in self._some():
            self.group.crash(name)
            self._start(name, self.rng.choice(self.strategies))

    def _pause(self) -> None:
        for name in self._some():
            self.group.freeze(name)

    def _resume(self) -> None:
        for name in self._some(self._frozen):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        self.group.thaw(name)
        self.rules.disturbed()

    def _grow(self) -> None:
        if len(self.group.partitions) < 24:
            self.group.add_partitions(self.rng.randint(1, 4))

    def _partition(self) -> str:
        return self.rng.choice(self.group.partitions)

    def _pin(self) -> None:
        for to in self._some():
            at_ms, timeout_ms = round(self.group.now * 1000), round(HANDOVER_TIMEOUT * 1000)
            kind = self.rng.choice((PinTo, PinTo, Transfer))
            order = kind(by=OPERATOR, at_ms=at_ms, partition=self._partition(), to=to, timeout_ms=timeout_ms)
            self.group.order_if_valid(order)

    def _unpin(self) -> None:
        self.group.order_if_valid(Unpin(by=OPERATOR, at_ms=0, partition=self._partition()))

    def _drain(self) -> None:
        for name in self._some():
            self.group.drain(name, undo=self.rng.random() < 0.6)


_HAPPENINGS = (
    *("join", "leave", "crash", "restart", "pause", "resume"),
    *("join", "crash", "restart", "pause", "pin", "pin", "unpin", "drain", "grow"),
)
