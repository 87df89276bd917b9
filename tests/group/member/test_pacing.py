"""When a member reads, balances and commits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark_ehbalance.group.changes import Checkpoint, Claim, Heartbeat, Transition
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.pacing import Pace, pause
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import STRATEGIES, Decision

ANN = Author("ann", "1")
BEAT: list[Transition] = [Heartbeat(by=ANN, at_ms=0)]
CHECKPOINT: list[Transition] = [Checkpoint(by=ANN, at_ms=0, partition="0", epoch=1, position=Position(5))]
CLAIM: list[Transition] = [Claim(by=ANN, at_ms=0, partition="0", epoch=1)]
LATER = 1e9
SETTINGS = Settings(STRATEGIES["greedy"], 30.0)
NOTHING = Decision("nothing")


def pace_after_turn(now: float = 100.0, rng: random.Random | None = None, **turn: Any) -> Pace:
    """A member's pace after a turn."""
    usual = {"members": 4, "in_handover": False, "took": None, "waited": 0.0, "decision": NOTHING}
    return Pace().after_turn(SETTINGS, rng or random.Random(0), now, **(usual | turn))


def admits(pace: Pace, transitions: list[Transition], now: float, renewal_due: float = LATER) -> bool:
    return not pace.admit(transitions, now, renewal_due).is_holding


def test_reads_are_more_frequent_while_a_handover_is_pending() -> None:
    assert Pace().due(LATER, progress=False) <= 0, "the first turn is at once"
    assert 100.8 <= pace_after_turn().due(LATER, progress=False) <= 101.2
    assert 100.16 <= pace_after_turn(in_handover=True).due(LATER, progress=False) <= 100.24


@pytest.mark.parametrize(
    ("decision", "low", "high"),
    [
        (NOTHING, 108.0, 112.0),
        (Decision("more", rebalance_now=True), 100.0, 100.0),
        (Decision("more soon", rebalance_now=True, rebalance_after=1.0), 101.0, 101.0),
        (Decision("soon", rebalance_after=3.0), 103.0, 103.0),
        (Decision("late", rebalance_after=300.0), 108.0, 112.0),
    ],
)
def test_balancing_is_due_once_an_interval_or_as_decided(decision: Decision, low: float, high: float) -> None:
    assert low <= pace_after_turn(decision=decision).balance_at <= high


def test_only_routine_waits_for_its_share_of_the_store() -> None:
    pace = pace_after_turn(members=30, took=0.1)
    # A first average of 0.03 s, 30 members and 0.3 of the store: 3 s between two commits of a member.
    for routine in (BEAT, CHECKPOINT):
        held = pace.admit(routine, 101.0, LATER)
        assert held.is_holding
        assert 102.4 <= held.due(LATER, progress=False) <= 103.6, "and then it is time for it"
        assert admits(pace, routine, 103.7)
        assert admits(pace, routine, 101.0, 101.0), "renewals are due"
    for other in (CLAIM, [*BEAT, *CLAIM], []):
        assert admits(pace, other, 101.0)


def test_commits_are_spaced_by_the_average_commit_time() -> None:
    pace, rng = Pace(), random.Random(0)
    for _ in range(20):
        pace = pace.after_turn(SETTINGS, rng, 0.0, members=1, in_handover=False, took=0.1, waited=0.0, decision=None)
    assert 0.09 < pace.latency <= 0.1


def test_member_that_waited_lets_others_commit_first() -> None:
    pace = pace_after_turn(took=3.0, waited=2.0, decision=Decision("nothing", rebalance_now=True))
    assert not admits(pace, CLAIM, 104.9)
    assert pace.others_until == 105
    assert pace.due(LATER, progress=True) == pace.read_at < 105, "a look costs the others nothing"
    assert admits(pace, BEAT, 104.9, 104.9), "renewals are due"
    assert admits(pace, CLAIM, 105.0)
    assert pace_after_turn(200.0, took=3600.0, waited=3599.0).others_until == 3810, (
        "a suspended process waits no longer"
    )


def test_renewals_are_early_by_a_random_fraction() -> None:
    rng = random.Random(0)
    ahead = [pace_after_turn(rng=rng, members=1000, took=0.5).ahead for _ in range(200)]
    assert 0 <= min(ahead) < 0.02
    assert 0.18 < max(ahead) <= 0.2


@pytest.mark.parametrize("failures", [1, 3, 10, 10_000])
def test_pauses_grow_up_to_half_the_time_between_renewals(failures: int) -> None:
    seconds = pause(SETTINGS, random.Random(0), failures, 10.0)
    assert 0.8 * min(0.1 * 2 ** min(failures, 20), 5) <= seconds <= 1.2 * 5
