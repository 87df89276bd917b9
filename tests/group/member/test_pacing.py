"""When a member looks, balances and commits."""

from __future__ import annotations

import random

import pytest

from spark_ehbalance.group.changes import Checkpoint, Claim, Heartbeat, Transition
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.pacing import Pacing
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import STRATEGIES, Decision

ANN = Author("ann", "1")
BEAT: list[Transition] = [Heartbeat(by=ANN, at_ms=0)]
CHECKPOINT: list[Transition] = [Checkpoint(by=ANN, at_ms=0, partition="0", epoch=1, position=Position(5))]
CLAIM: list[Transition] = [Claim(by=ANN, at_ms=0, partition="0", epoch=1)]
LATER = 1e9


def pacing(*, interval: float = 10.0, reactive: bool = False, seed: int = 0) -> Pacing:
    settings = Settings(STRATEGIES["greedy"], 30.0, balance_interval=interval, reactive=reactive)
    return Pacing(settings, random.Random(seed))


def turned(
    pacing: Pacing,
    now: float,
    *,
    members: int = 4,
    in_handover: bool = False,
    took: float | None = None,
    waited: float = 0.0,
    decision: Decision | None = None,
) -> None:
    pacing.turned(now, members=members, in_handover=in_handover, took=took, waited=waited, decision=decision)


def test_the_first_turn_is_at_once_and_balances() -> None:
    new = pacing()
    assert new.due(LATER, progress=False) <= 0
    assert new.balances(0.0, lambda: False)


def test_looks_are_a_second_apart_and_less_while_a_handover_is_pending() -> None:
    beat = pacing()
    turned(beat, 100.0, decision=Decision("nothing"))
    assert 100.8 <= beat.due(LATER, progress=False) <= 101.2
    turned(beat, 100.0, in_handover=True)
    assert 100.16 <= beat.due(LATER, progress=False) <= 100.24


def test_balancing_comes_once_an_interval_and_earlier_where_the_decision_says_so() -> None:
    beat = pacing()
    for decision, low, high in (
        (Decision("nothing"), 108.0, 112.0),
        (Decision("more", rebalance_now=True), 100.0, 100.0),
        (Decision("more soon", rebalance_now=True, rebalance_after=1.0), 101.0, 101.0),
        (Decision("soon", rebalance_after=3.0), 103.0, 103.0),
        (Decision("late", rebalance_after=300.0), 108.0, 112.0),
    ):
        turned(beat, 100.0, decision=decision)
        assert low <= beat.balance_at <= high
    assert not beat.balances(100.0, lambda: True), "only a reactive group balances on changes"
    assert beat.balances(112.0, lambda: False)
    reactive = pacing(reactive=True)
    turned(reactive, 100.0, decision=Decision("nothing"))
    assert reactive.balances(100.0, lambda: True)
    assert not reactive.balances(100.0, lambda: False)


def test_only_routine_waits_for_its_share_of_the_store() -> None:
    beat = pacing()
    turned(beat, 100.0, members=30, took=0.1, decision=Decision("nothing"))
    # 0.03 s as a first average, 30 members and 0.3 of the store: 3 s between two commits of one member.
    for routine in (BEAT, CHECKPOINT):
        assert beat.admit(routine, 101.0, LATER) == []
        assert 102.4 <= beat.due(LATER, progress=False) <= 103.6, "and then it is time for it"
        assert beat.admit(routine, 103.7, LATER) == routine
        assert beat.admit(routine, 101.0, 101.0) == routine, "renewals are due"
    assert beat.admit(CLAIM, 101.0, LATER) == CLAIM
    assert beat.admit([*BEAT, *CLAIM], 101.0, LATER) == [*BEAT, *CLAIM]
    assert beat.admit([], 101.0, LATER) == []


def test_who_had_to_wait_for_others_lets_them_go_first_for_as_long() -> None:
    beat = pacing(reactive=True)
    turned(beat, 100.0, took=3.0, waited=2.0, decision=Decision("nothing", rebalance_now=True))
    assert beat.admit(CLAIM, 104.9, LATER) == []
    assert not beat.balances(104.9, lambda: True)
    assert beat.due(LATER, progress=True) == beat.look_at < 105, "a look costs the others nothing"
    assert beat.admit(BEAT, 104.9, 104.9) == BEAT, "renewals are due"
    assert beat.admit(CLAIM, 105.0, LATER) == CLAIM
    assert beat.balances(105.0, lambda: True)
    turned(beat, 200.0, took=3600.0, waited=3599.0, decision=Decision("nothing"))
    assert beat.balances(3810.0, lambda: True), "a suspended process waits no longer than usual"


def test_renewals_come_a_little_early_each_time_by_another_part() -> None:
    beat, ahead = pacing(interval=1000.0), []
    for _ in range(200):
        turned(beat, 100.0, members=1000, took=0.5, decision=Decision("nothing"))
        ahead.append(beat.ahead)
    assert 0 <= min(ahead) < 0.02
    assert 0.18 < max(ahead) <= 0.2
    assert beat.due(150.0, progress=False) == 150.0
    assert beat.admit(BEAT, 150.0, 150.0) == BEAT


@pytest.mark.parametrize("failures", [1, 3, 10, 10_000])
def test_pauses_grow_up_to_half_the_time_between_renewals(failures: int) -> None:
    assert 0.8 * min(0.1 * 2 ** min(failures, 20), 5) <= pacing().pause(failures, 10.0) <= 1.2 * 5
