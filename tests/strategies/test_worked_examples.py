"""The worked examples of the Event Processor's guide, and what else its strategies promise."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_ehbalance.leases.transitions import Claim, Steal
from spark_ehbalance.strategies import DEFAULT_STRATEGY, STRATEGIES
from tests.strategies.simulation import Simulation

SEEDS = range(10)
BOTH = pytest.mark.parametrize("strategy", ["balanced", "greedy"])
EACH_SEED = pytest.mark.parametrize("seed", SEEDS)


def balanced_group(strategy: str, *, partitions: int, members: int, seed: int) -> Simulation:
    """A group that has come to rest."""
    group = Simulation(strategy, partitions=partitions, seed=seed)
    group.join(members)
    group.settle(within=200)
    return group


def assert_stable(group: Simulation, rounds: int = 50) -> None:
    layout = {partition: (lease.owner, lease.epoch) for partition, lease in group.snapshot.leases.items()}
    for _ in range(rounds):
        assert not group.round().moves
    assert {partition: (lease.owner, lease.epoch) for partition, lease in group.snapshot.leases.items()} == layout


def test_the_default_is_one_of_the_strategies() -> None:
    assert DEFAULT_STRATEGY in STRATEGIES


# --- 5 partitions, 1 owner ---------------------------------------------------------------------------------------


def test_balanced_first_claims_one_of_five_at_random() -> None:
    first = Counter[str]()
    for seed in range(200):
        group = Simulation("balanced", partitions=5, seed=seed)
        group.join()
        moves = group.round().moves
        assert len(moves) == 1
        first[moves[0].partition] += 1
    assert set(first) == set("01234")
    assert max(first.values()) < 80, "200 draws of 5, 40 each: twice as many is no chance"


def test_greedy_claims_all_five_at_once() -> None:
    group = Simulation("greedy", partitions=5)
    group.join()
    assert len(group.round().moves) == 5


@BOTH
@EACH_SEED
def test_a_single_owner_ends_with_all(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=5, members=1, seed=seed)
    assert group.counts() == [5]
    assert_stable(group)


# --- the other layouts -------------------------------------------------------------------------------------------


@BOTH
@EACH_SEED
def test_one_of_six_members_on_five_partitions_stays_idle(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=5, members=6, seed=seed)
    assert group.counts() == [0, 1, 1, 1, 1, 1]
    assert_stable(group)


@BOTH
@EACH_SEED
def test_the_idle_member_takes_over_when_one_dies(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=5, members=6, seed=seed)
    group.crash(next(name for name in group.live if group.snapshot.owned_by(name)))
    group.settle(within=50)
    assert group.counts() == [1, 1, 1, 1, 1]


@BOTH
@EACH_SEED
def test_a_fourth_member_on_eighteen_partitions(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=18, members=3, seed=seed)
    assert group.counts() == [6, 6, 6]
    group.join()
    group.settle(within=50)
    assert group.counts() == [4, 4, 5, 5]
    assert_stable(group)


@BOTH
@EACH_SEED
@pytest.mark.parametrize("how", ["leave", "crash"])
def test_one_of_four_members_on_twenty_partitions_goes(strategy: str, seed: int, how: str) -> None:
    group = balanced_group(strategy, partitions=20, members=4, seed=seed)
    assert group.counts() == [5, 5, 5, 5]
    getattr(group, how)(random.Random(seed).choice(group.live))
    group.settle(within=50)
    assert group.counts() == [6, 7, 7]
    assert_stable(group)


@BOTH
@EACH_SEED
def test_five_partitions_more_for_four_members_on_twenty(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=20, members=4, seed=seed)
    group.add_partitions(5)
    group.settle(within=50)
    assert group.counts() == [6, 6, 6, 7]
    assert_stable(group)


# --- what is promised on the way ---------------------------------------------------------------------------------


@EACH_SEED
def test_balanced_moves_one_partition_per_member_and_cycle(seed: int) -> None:
    group = Simulation("balanced", partitions=18, seed=seed)
    group.join(3)
    sizes = set()
    for number in range(60):
        if number == 20:
            group.join()
        if number == 40:
            group.crash(group.live[0])
        for decisions in group.round().decisions.values():
            assert len(decisions) == 1
            sizes.add(len(decisions[0].transitions))
    assert sizes == {0, 1}


@EACH_SEED
def test_greedy_is_done_after_one_cycle_of_each(seed: int) -> None:
    group = balanced_group("greedy", partitions=18, members=3, seed=seed)
    (newcomer,) = group.join()
    happened = group.round()
    assert group.counts() == [4, 4, 5, 5]
    assert {move.by.id for move in happened.moves} == {newcomer}


@EACH_SEED
def test_greedy_rebalances_at_once_only_after_it_took_something(seed: int) -> None:
    group = Simulation("greedy", partitions=18, seed=seed)
    group.join(4)
    for _ in range(4):
        for decisions in group.round().decisions.values():
            for decision in decisions:
                assert decision.rebalance_now == bool(decision.transitions)


@BOTH
@EACH_SEED
def test_no_member_steals_while_a_partition_is_unclaimed(strategy: str, seed: int) -> None:
    group = balanced_group(strategy, partitions=12, members=3, seed=seed)
    group.add_partitions(12)
    group.join()
    free = sum(lease.owner is None for lease in group.snapshot.leases.values())
    while free:
        moves = group.round().moves
        claims = [isinstance(move, Claim) for move in moves]
        assert claims == sorted(claims, reverse=True), "first claims, then steals"
        assert all(claims[:free])
        free -= sum(claims)


@BOTH
@EACH_SEED
def test_a_member_with_its_share_leaves_unclaimed_partitions_to_others(strategy: str, seed: int) -> None:
    """Six partitions, three owners: the first has its two, and two are free for the others."""
    group = Simulation(strategy, partitions=6, seed=seed)
    ann, bob, cat = group.join(3)
    group.give([ann, ann, bob, cat, None, None])
    happened = group.round()
    assert all(not decision.transitions for decision in happened.decisions[ann])
    assert {move.by.id for move in happened.moves} == {bob, cat}
    assert group.counts() == [2, 2, 2]


@BOTH
@EACH_SEED
def test_a_newcomer_needs_the_fewest_moves(strategy: str, seed: int) -> None:
    """Here the newcomer sees its goal from the start: it needs no more steals than its share."""
    group = balanced_group(strategy, partitions=20, members=4, seed=seed)
    group.join()
    moves = [move for _ in range(30) for move in group.round().moves]
    assert [type(move) for move in moves] == [Steal] * 4
    assert group.counts() == [4, 4, 4, 4, 4]


@BOTH
def test_every_decision_has_a_reason(strategy: str) -> None:
    group = Simulation(strategy, partitions=4)
    group.join(2)
    reasons = Counter[bool]()
    for _ in range(10):
        for decisions in group.round().decisions.values():
            for decision in decisions:
                reasons[decision.reason.startswith("nothing, because ")] += 1
                assert decision.reason.startswith(("nothing, because ", "claim, because ", "steal, because "))
                assert decision.reason.startswith("nothing") == (not decision.transitions)
    assert min(reasons[True], reasons[False]) > 0


@BOTH
def test_the_same_seed_gives_the_same_group(strategy: str) -> None:
    def play(seed: int) -> list[str | None]:
        group = balanced_group(strategy, partitions=18, members=4, seed=seed)
        return [lease.owner for lease in group.snapshot.leases.values()]

    assert play(1) == play(1)
    assert play(1) != play(2)
