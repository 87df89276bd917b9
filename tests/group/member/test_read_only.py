"""Outages in which members can read the table but not write it: who is taken for dead, and who reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.durations import short_outage
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.member.protocol import Committed, StoreFailed
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.memory import MemoryStore
from tests.group.strategies.members import balance_now, looked
from tests.lease_table.store_conformance import GROUP

#: Seconds: a lease, between two looks, before a retry after a failure (the longest of `pacing.pause`), and a step.
LEASE, LOOK, PAUSE, STEP = 30.0, 1.0, 6.0, 0.5

#: When the members start: by 0 each owns its share.
BEGIN = -40.0

#: A member, when its outage begins, and how long it lasts.
Outage = tuple[int, float, float]


@dataclass(slots=True)
class Process:
    """A member that looks now and then, and cannot write in its outages."""

    member: MemberEngine
    outages: Sequence[tuple[float, float]]
    look_at: float
    failing: float = 0.0  # the part of its commits that fail from time 0 on, whatever the outages
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    #: When it last wrote, whether a try has failed since, and when that had gone on for more than a short outage.
    wrote: float = float("-inf")
    failed: bool = False
    long_failures: list[float] = field(default_factory=list)

    def read_only(self, now: float) -> bool:
        return any(begin <= now < begin + lasts for begin, lasts in self.outages)

    def fails(self, now: float) -> bool:
        return self.read_only(now) or (now >= 0 and self.rng.random() < self.failing)

    def tried(self, now: float, *, failed: bool) -> None:
        if (failed or self.failed) and now - self.wrote > short_outage(LEASE):
            self.long_failures.append(now)
        self.failed = failed
        self.wrote = self.wrote if failed else now

    def reads(self, now: float) -> set[str]:
        return set(self.member.holdings(now))


class Processes:
    """Three members with two partitions each; each look of one is at a moment of its own."""

    def __init__(self, outages: Sequence[Outage], seed: int) -> None:
        rng = random.Random(seed)
        leases = {str(p): Lease(str(p), checkpoint=Position(-1)) for p in range(6)}
        self.store = MemoryStore(Snapshot(GROUP, leases=MappingProxyType(leases)))
        self.all = [
            Process(
                MemberEngine(Author(str(n), str(n)), Settings(STRATEGIES["cooperative"], LEASE), random.Random(n)),
                [(begin, lasts) for member, begin, lasts in outages if member == n],
                BEGIN + rng.uniform(0, LOOK),
            )
            for n in range(3)
        ]
        #: When a partition was taken, from whom and by whom, and whether the former's last try to write had failed.
        self.taken: list[tuple[float, int, int, bool]] = []

    def step(self, now: float) -> None:
        for process in self.all:
            if now >= process.look_at:
                # After a first failure a pause is short.
                failing = not self._turn(process, now) and process.read_only(now)
                process.look_at = now + (PAUSE if failing else LOOK)

    def _turn(self, process: Process, now: float) -> bool:
        member, before, clocks = process.member, self.store.read(), Clocks(now, round(1000 * (now + 1000)))
        balance_now(member, clocks)
        _, write = looked(member, before, tuple(before.leases), clocks)
        if write is None:
            return True
        failed = process.fails(now)
        process.tried(now, failed=failed)
        if failed:
            member.handle(StoreFailed(writing=True), clocks)
            return False
        outcome = commit(self.store, before, write.changes)
        member.handle(Committed(outcome), clocks)
        for partition, lease in outcome.after.leases.items():
            was = before.leases[partition].owner
            if was not in (None, lease.owner) and before.leases[partition].handover is None:
                victim, taker = int(was or 0), int(lease.owner or 0)
                self.taken.append((now, victim, taker, self.all[victim].failed if victim < len(self.all) else True))
        return True


def times(end: float) -> list[float]:
    return [BEGIN + number * STEP for number in range(int((end - BEGIN) / STEP))]


def outage() -> st.SearchStrategy[Outage]:
    return st.tuples(st.integers(0, 2), st.floats(0, 90), st.floats(1, 100))


ALL = [(0, 5.0, 100.0), (1, 5.0, 101.0), (2, 5.0, 103.0)]


@settings(deadline=None, max_examples=25)
@given(outages=st.lists(outage(), max_size=6), seed=st.integers(0, 5))
@example(outages=ALL, seed=0)
@example(outages=ALL[:2], seed=0)
@example(outages=[(0, 0.0, 60.0), (1, 20.0, 100.0), (2, 20.0, 41.0)], seed=1)
@example(outages=[(0, 34.0, 1.0), (1, 32.0, 26.0)], seed=0)  # the first one does not notice
@example(outages=[(0, 27.1, 150.0), (1, 0.0, 26.0)], seed=0)  # is given something that it cannot renew, between looks
@example(outages=[(0, 2.0, 21.1), (0, 25.0, 3.0)], seed=0)  # in between it waits for its next try
def test_only_a_member_that_alone_could_not_write_is_taken_for_dead_and_it_has_stopped_by_then(
    outages: list[Outage], seed: int
) -> None:
    group = Processes(outages, seed)
    for now in times(230):
        group.step(now)
        reading = [process.reads(now) for process in group.all]
        assert sum(map(len, reading)) == len(set().union(*reading)), "nothing is read by two"
    for at, _, taker, had_failed in group.taken:
        assert all(failed < at - LEASE for failed in group.all[taker].long_failures if failed <= at), (
            "a member that cannot write knows nothing of others"
        )
        assert had_failed, "it could have renewed"
    assert all(len(process.reads(now)) == 2 for process in group.all), "in the end all is as it was"


def test_an_outage_of_all_moves_nothing_and_all_read_on_most_of_the_time() -> None:
    group, idle = Processes(ALL, 0), 0.0
    for now in times(300):
        group.step(now)
        if now > 0:
            idle += STEP * sum(not process.reads(now) for process in group.all)
    assert group.taken == []
    assert idle <= 3 * LEASE / 3, "until it is seen that nobody can write"


@pytest.mark.parametrize("failing", [0.05, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_occasional_failures_keep_nobody_from_taking_what_a_dead_member_had(failing: float, seed: int) -> None:
    group, dies = Processes([], seed), 50.0
    for number, process in enumerate(group.all):
        process.failing, process.rng = failing, random.Random(10 * seed + number)
    dead = group.all[2]
    for now in times(dies + LEASE + LEASE / 3 + LOOK + PAUSE):
        if now == dies:
            group.all.remove(dead)
        group.step(now)
    assert not group.store.read().owned_by("2")
    assert {victim for _, victim, _, _ in group.taken} <= {2}, "nobody else is taken for dead"
    assert sum(len(process.reads(now)) for process in group.all) == 6
