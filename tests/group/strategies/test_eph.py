"""EventProcessorHost's partition manager: a share at once of what is free, one at a time of what is not."""

from __future__ import annotations

from spark_ehbalance.group.changes import Claim, Steal
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.eph import eph
from tests.group.strategies.groups import assert_balanced, moves_of_a_cycle, settle
from tests.group.strategies.members import Members, layout_of, snapshot_of
from tests.group.strategies.views import view_of


def group_of(owners: str, free: int = 0) -> Snapshot:
    """Single letters own partitions 0, 1, …; they and `d`, who owns nothing, are the members."""
    return snapshot_of(sorted({*owners, "d"}), layout_of([*owners, *[None] * free]))


def test_pinned_partitions_are_neither_claimed_nor_stolen() -> None:
    (stolen,) = eph(view_of(group_of("aaabb"), "d", pinned="012")).transitions
    assert isinstance(stolen, Steal)
    assert stolen.partition in "34", "the biggest has nothing to give"
    assert not eph(view_of(group_of("aa"), "d", pinned="01")).transitions
    (grabbed,) = eph(view_of(group_of("", 2), "d", pinned="0")).transitions
    assert isinstance(grabbed, Claim)
    assert grabbed.partition == "1"


def test_a_fourth_host_is_given_one_lease_per_cycle() -> None:
    group = Members(18, strategy="eph")
    group.join_many(3)
    settle(group, 20)
    (name,) = group.join()
    group.cycles(1)
    owned = []
    for _ in range(5):
        group.cycles(1)
        owned.append(group.counts()[name])
    assert owned == [1, 2, 3, 4, 4]
    assert_balanced(group)


def test_a_dead_hosts_leases_are_claimed_in_one_cycle() -> None:
    group = Members(20, strategy="eph")
    names = group.join_many(4)
    settle(group, 40)
    group.crash(names[0])
    while not (moves := moves_of_a_cycle(group)):
        pass
    assert len(moves) == 5
    assert_balanced(group)
