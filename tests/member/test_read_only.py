"""Spells in which members can read the table but not write it, each its own: who is taken for dead, and who reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ehbalance.leases.model import Author, Lease
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.member.membership import Clocks, Membership, Settings, in_force
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.memory import MemoryStore
from spark_ehbalance.strategies import STRATEGIES
from spark_ehbalance.values.position import Position
from tests.stores.store_conformance import GROUP

#: Seconds: a lease, between two looks, before the next try after a failure (the longest in `Pacing.pause`), and a step.
LEASE, LOOK, PAUSE, STEP = 30.0, 1.0, 6.0, 0.5

#: Member, when its spell begins, and how long it lasts.
Spell = tuple[int, float, float]


@dataclass(slots=True)
class Process:
    """A member that looks now and then, and cannot write in its spells."""

    member: Membership
    spells: Sequence[tuple[float, float]]
    look_at: float
    failing: float = 0.0  # the part of its commits that fail from time 0 on, whatever the spells
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    #: When it has last written, whether in vain since, and when it found that it could not for more than a short spell.
    wrote: float = float("-inf")
    failed: bool = False
    silenced: list[float] = field(default_factory=list)

    def mute(self, now: float) -> bool:
        return any(begin <= now < begin + lasts for begin, lasts in self.spells)

    def fails(self, now: float) -> bool:
        return self.mute(now) or (now >= 0 and self.rng.random() < self.failing)

    def tried(self, now: float, *, failed: bool) -> None:
        if (failed or self.failed) and now - self.wrote > self.member.settings.short_spell:
            self.silenced.append(now)
        self.failed = failed
        self.wrote = self.wrote if failed else now

    def reads(self, now: float) -> set[str]:
        return in_force(self.member.plannable(), now, self.member.settings, self.member.assured).keys() | set()


class Processes:
    """Three members with two partitions each; each look of one is at a moment of its own."""

    def __init__(self, spells: Sequence[Spell], seed: int) -> None:
        rng = random.Random(seed)
        leases = {str(p): Lease(str(p), checkpoint=Position(-1)) for p in range(6)}
        self.store = MemoryStore(Snapshot(GROUP, leases=MappingProxyType(leases)))
        self.all = [
            Process(
                Membership(Author(str(n), str(n)), Settings(STRATEGIES["cooperative"], LEASE), random.Random(n)),
                [(begin, lasts) for member, begin, lasts in spells if member == n],
                -100.0 + rng.uniform(0, LOOK),
            )
            for n in range(3)
        ]
        #: When a partition changed hands, from whom and to whom.
        self.taken: list[tuple[float, int, int]] = []

    def step(self, now: float) -> None:
        for process in self.all:
            if now >= process.look_at:
                mute = not self._turn(process, now) and process.mute(now)  # after a first failure a pause is short
                process.look_at = now + (PAUSE if mute else LOOK)

    def _turn(self, process: Process, now: float) -> bool:
        member, clocks, before = process.member, Clocks(now, round(1000 * (now + 1000))), self.store.read()
        member.see(before, clocks)
        said, _ = member.balance(before, clocks, tuple(before.leases), lambda _: Position(-1))
        failed = bool(said) and process.fails(now)
        if said:
            process.tried(now, failed=failed)
        if failed:
            member.unwritten()
            return False
        outcome = commit(self.store, before, said)
        member.written(outcome, clocks)
        for partition, lease in outcome.after.leases.items():
            was = before.leases[partition].owner
            if was not in (None, lease.owner) and before.leases[partition].handover is None:
                self.taken.append((now, int(was or 0), int(lease.owner or 0)))
        return True


def spell() -> st.SearchStrategy[Spell]:
    return st.tuples(st.integers(0, 2), st.floats(0, 120), st.floats(1, 150))


ALL = [(0, 5.0, 100.0), (1, 5.0, 101.0), (2, 5.0, 103.0)]


@settings(deadline=None)
@given(spells=st.lists(spell(), max_size=6), seed=st.integers(0, 5))
@example(spells=ALL, seed=0)
@example(spells=ALL[:2], seed=0)
@example(spells=[(0, 0.0, 60.0), (1, 20.0, 100.0), (2, 20.0, 41.0)], seed=1)
@example(spells=[(0, 34.0, 1.0), (1, 32.0, 26.0)], seed=0)  # the first one does not notice
@example(spells=[(0, 27.1, 150.0), (1, 0.0, 26.0)], seed=0)  # is given something that it cannot renew, between looks
def test_only_who_could_not_write_while_others_could_is_taken_for_dead_and_it_has_stopped_by_then(
    spells: list[Spell], seed: int
) -> None:
    group = Processes(spells, seed)
    for number in range(int(400 / STEP)):
        now = -100 + number * STEP
        group.step(now)
        reading = [process.reads(now) for process in group.all]
        assert sum(map(len, reading)) == len(set().union(*reading)), "nothing is read by two"
    for at, victim, taker in group.taken:
        assert all(silenced < at - LEASE for silenced in group.all[taker].silenced if silenced <= at), (
            "its silence says nothing"
        )
        last_try = at - PAUSE - LOOK
        assert group.all[victim].mute(last_try), "it could have renewed"
    assert all(len(process.reads(now)) == 2 for process in group.all), "in the end all is as it was"


def test_a_spell_of_all_moves_nothing_and_all_read_on_most_of_the_time() -> None:
    group, idle = Processes(ALL, 0), 0.0
    for number in range(int(400 / STEP)):
        now = -100 + number * STEP
        group.step(now)
        if now > 0:
            idle += STEP * sum(not process.reads(now) for process in group.all)
    assert group.taken == []
    assert idle <= 3 * LEASE / 3, "until it is seen that nobody can write"


@pytest.mark.parametrize("failing", [0.05, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_commits_that_fail_now_and_then_keep_nobody_from_taking_what_the_dead_had(failing: float, seed: int) -> None:
    group, dies, now = Processes([], seed), 50.0, -100.0
    for number, process in enumerate(group.all):
        process.failing, process.rng = failing, random.Random(10 * seed + number)
    dead = group.all[2]
    while now < dies + LEASE + LEASE / 3 + LOOK + PAUSE:
        if now == dies:
            group.all.remove(dead)
        group.step(now)
        now += STEP
    assert not group.store.read().owned_by("2")
    assert {victim for _, victim, _ in group.taken} <= {2}, "nobody else is taken for dead"
    assert sum(len(process.reads(now)) for process in group.all) == 6
