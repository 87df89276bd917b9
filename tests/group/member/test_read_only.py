"""Outages in which members can read the table but not write it: who is taken for dead, and who reads."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.durations import short_outage
from spark_ehbalance.group.snapshot import Snapshot
from tests.group.strategies.members import LEASE, LOOK, Members

#: Seconds: before a retry after a failure (the longest of `pacing.pause`), and a step.
PAUSE, STEP = 6.0, 0.5

NAMES = ("0", "1", "2")

#: A member, when its outage begins, and how long it lasts.
Outage = tuple[int, float, float]


class Outages:
    """Three members with two partitions each, which cannot write in their outages, nor with the probability `failing`.
    Time begins when each owns its share."""

    def __init__(self, outages: Sequence[Outage], seed: int, failing: float = 0.0) -> None:
        self.group = Members(6, seed=seed)
        self.group.join(*NAMES)
        self.group.run(40)
        self._began, self._outages, self._failing, self._rng = self.group.now, outages, failing, random.Random(seed)
        self._wrote = dict.fromkeys(NAMES, 0.0)
        self._failed = dict.fromkeys(NAMES, False)
        #: By member: when tries have failed for longer than a short outage.
        self.long_failures: dict[str, list[float]] = {name: [] for name in NAMES}
        #: When a partition was taken, from whom and by whom, and whether the former's last try to write had failed.
        self.taken: list[tuple[float, str, str, bool]] = []
        self.group.fails, self.group.wrote = self._fails, self._watch

    @property
    def now(self) -> float:
        return self.group.now - self._began

    def step(self) -> list[set[str]]:
        """What each running member reads then."""
        self.group.run(STEP)
        return [{*node.member.holdings(self.group.now)} for node in self.group.nodes.values()]

    def _fails(self, name: str) -> bool:
        failed = self._rng.random() < self._failing or any(
            str(member) == name and begin <= self.now < begin + lasts for member, begin, lasts in self._outages
        )
        if (failed or self._failed[name]) and self.now - self._wrote[name] > short_outage(LEASE):
            self.long_failures[name].append(self.now)
        self._failed[name] = failed
        if not failed:
            self._wrote[name] = self.now
        return failed

    def _watch(self, before: Snapshot, after: Snapshot) -> None:
        for partition, lease in after.leases.items():
            was = before.leases[partition]
            if was.owner not in (None, lease.owner) and was.handover is None:
                victim = was.owner or ""
                gone = victim not in self.group.nodes
                self.taken.append((self.now, victim, lease.owner or "", gone or self._failed[victim]))


ALL = [(0, 5.0, 100.0), (1, 5.0, 101.0), (2, 5.0, 103.0)]


@settings(deadline=None, max_examples=10)
@given(
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 90), st.floats(1, 100)), max_size=6),
    seed=st.integers(0, 5),
)
@example(outages=ALL, seed=0)
@example(outages=ALL[:2], seed=0)
@example(outages=[(0, 0.0, 60.0), (1, 20.0, 100.0), (2, 20.0, 41.0)], seed=1)
@example(outages=[(0, 34.0, 1.0), (1, 32.0, 26.0)], seed=0)  # the first one does not notice
@example(outages=[(0, 27.1, 150.0), (1, 0.0, 26.0)], seed=0)  # is given something that it cannot renew, between looks
@example(outages=[(0, 2.0, 21.1), (0, 25.0, 3.0)], seed=0)  # in between it waits for its next try
def test_only_a_member_that_alone_could_not_write_is_taken_for_dead_and_it_has_stopped_by_then(
    outages: list[Outage], seed: int
) -> None:
    world = Outages(outages, seed)
    while world.now < 230:
        reading = world.step()
        assert sum(map(len, reading)) == len(set().union(*reading)), "nothing is read by two"
    for at, _, taker, had_failed in world.taken:
        assert all(failed < at - LEASE for failed in world.long_failures[taker] if failed <= at), (
            "a member that cannot write knows nothing of others"
        )
        assert had_failed, "it could have renewed"
    assert [len(each) for each in reading] == [2, 2, 2], "in the end all is as it was"


def test_an_outage_of_all_moves_nothing_and_all_read_on_most_of_the_time() -> None:
    world, idle = Outages(ALL, 0), 0.0
    while world.now < 300:
        idle += STEP * sum(not each for each in world.step())
    assert world.taken == []
    assert idle <= 3 * LEASE / 3, "until it is seen that nobody can write"


@pytest.mark.parametrize("failing", [0.05, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_occasional_failures_keep_nobody_from_taking_what_a_dead_member_had(failing: float, seed: int) -> None:
    world = Outages([], seed, failing)
    while world.now < 50:
        world.step()
    world.group.crash("2")
    while world.now < 50 + LEASE + LEASE / 3 + LOOK + PAUSE:
        reading = world.step()
    assert not world.group.snapshot.owned_by("2")
    assert {victim for _, victim, _, _ in world.taken} <= {"2"}, "nobody else is taken for dead"
    assert sum(map(len, reading)) == 6
