"""The worked examples of the Event Processor's guide, and what else its strategies promise."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.group.strategies.groups import assert_stable, moves_of_a_cycle, settle
from tests.group.strategies.members import Members

SEEDS = range(4)
BOTH = pytest.mark.parametrize("strategy", ["balanced", "greedy"])
EACH_SEED = pytest.mark.parametrize("seed", SEEDS)


def started(strategy: str, *, partitions: int, members: int, seed: int = 0) -> Members:
    """A group whose members know each other, and own nothing yet."""
    group = Members(partitions, seed=seed, strategy=strategy)
    group.join_many(members)
    group.cycles(1)
    group.decisions.clear()
    return group


def balanced_group(strategy: str, *, partitions: int, members: int, seed: int) -> Members:
    """A group that has come to rest."""
    group = started(strategy, partitions=partitions, members=members, seed=seed)
    settle(group, 200)
    return group


def sizes(group: Members) -> list[int]:
    """How many partitions each member owns, fewest first."""
    return sorted(group.counts().values())


# --- 5 partitions, 1 owner ---------------------------------------------------------------------------------------


def test_balanced_first_claims_one_of_five_at_random() -> None:
    first = Counter[str]()
    for seed in range(200):
        moves = moves_of_a_cycle(started("balanced", partitions=5, members=1, seed=seed))
        assert len(moves) == 1
        first[moves[0].partition] += 1
    assert set(first) == set("01234")
    assert max(first.values()) < 80, "200 draws of 5, 40 each: twice as many is no chance"


def test_greedy_claims_all_five_at_once() -> None:
    assert len(moves_of_a_cycle(started("greedy", partitions=5, members=1))) == 5


# --- the other layouts -------------------------------------------------------------------------------------------


@BOTH
@EACH_SEED
def test_one_of_six_members_on_five_partitions_stays_idle(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=5, members=6, seed=seed)
    assert sizes(group) == [0, 1, 1, 1, 1, 1]
    assert_stable(group, 10)


@BOTH
@EACH_SEED
def test_a_fourth_member_on_eighteen_partitions(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=18, members=3, seed=seed)
    assert sizes(group) == [6, 6, 6]
    group.join()
    settle(group, 50)
    assert sizes(group) == [4, 4, 5, 5]
    assert_stable(group, 10)


@BOTH
@EACH_SEED
@pytest.mark.parametrize("how", ["leave", "crash"])
def test_one_of_four_members_on_twenty_partitions_goes(strategy: str, seed: int, how: str) -> None:
    group = balanced_group(strategy, partitions=20, members=4, seed=seed)
    assert sizes(group) == [5, 5, 5, 5]
    getattr(group, how)(random.Random(seed).choice(list(group.nodes)))
    settle(group, 50)
    assert sizes(group) == [6, 7, 7]
    assert_stable(group, 10)


@BOTH
@EACH_SEED
def test_five_partitions_more_for_four_members_on_twenty(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=20, members=4, seed=seed)
    group.add_partitions(5)
    settle(group, 50)
    assert sizes(group) == [6, 6, 6, 7]
    assert_stable(group, 10)


# --- what is promised on the way ---------------------------------------------------------------------------------


@EACH_SEED
def test_greedy_is_done_after_one_cycle_of_each(seed: int) -> None:
    group = balanced_group("greedy", partitions=18, members=3, seed=seed)
    (newcomer,) = group.join()
    group.cycles(1)
    moves = moves_of_a_cycle(group)
    assert sizes(group) == [4, 4, 5, 5]
    assert {move.after for move in moves} == {newcomer}
