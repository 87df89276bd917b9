"""When a member looks, balances and commits."""

from __future__ import annotations

import random

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


class Beat:
    """The pace of one member."""

    def __init__(self, *, interval: float = 10.0) -> None:
        self.settings = Settings(STRATEGIES["greedy"], 30.0, balance_interval=interval)
        self.rng = random.Random(0)
        self.pace = Pace()

    def turned(
        self,
        now: float,
        *,
        members: int = 4,
        in_handover: bool = False,
        took: float | None = None,
        waited: float = 0.0,
        decision: Decision | None = None,
    ) -> None:
        self.pace = self.pace.turned(
            self.settings,
            self.rng,
            now,
            members=members,
            in_handover=in_handover,
            took=took,
            waited=waited,
            decision=decision,
        )

    def due(self, renewal_due: float = LATER, *, progress: bool = False) -> float:
        return self.pace.due(renewal_due, progress=progress)

    def admits(self, transitions: list[Transition], now: float, renewal_due: float = LATER) -> bool:
        self.pace = self.pace.admitted(transitions, now, renewal_due)
        return not self.pace.holds


def test_the_first_turn_is_at_once() -> None:
    assert Beat().due() <= 0


def test_looks_are_a_second_apart_and_less_while_a_handover_is_pending() -> None:
    beat = Beat()
    beat.turned(100.0, decision=Decision("nothing"))
    assert 100.8 <= beat.due() <= 101.2
    beat.turned(100.0, in_handover=True)
    assert 100.16 <= beat.due() <= 100.24


def test_balancing_comes_once_an_interval_and_earlier_where_the_decision_says_so() -> None:
    beat = Beat()
    for decision, low, high in (
        (Decision("nothing"), 108.0, 112.0),
        (Decision("more", rebalance_now=True), 100.0, 100.0),
        (Decision("more soon", rebalance_now=True, rebalance_after=1.0), 101.0, 101.0),
        (Decision("soon", rebalance_after=3.0), 103.0, 103.0),
        (Decision("late", rebalance_after=300.0), 108.0, 112.0),
    ):
        beat.turned(100.0, decision=decision)
        assert low <= beat.pace.balance_at <= high


def test_only_routine_waits_for_its_share_of_the_store() -> None:
    beat = Beat()
    beat.turned(100.0, members=30, took=0.1, decision=Decision("nothing"))
    # 0.03 s as a first average, 30 members and 0.3 of the store: 3 s between two commits of one member.
    for routine in (BEAT, CHECKPOINT):
        assert not beat.admits(routine, 101.0)
        assert 102.4 <= beat.due() <= 103.6, "and then it is time for it"
        assert beat.admits(routine, 103.7)
        assert beat.admits(routine, 101.0, 101.0), "renewals are due"
    assert beat.admits(CLAIM, 101.0)
    assert beat.admits([*BEAT, *CLAIM], 101.0)
    assert beat.admits([], 101.0)


def test_who_had_to_wait_for_others_lets_them_go_first_for_as_long() -> None:
    beat = Beat()
    beat.turned(100.0, took=3.0, waited=2.0, decision=Decision("nothing", rebalance_now=True))
    assert not beat.admits(CLAIM, 104.9)
    assert beat.pace.others_until == 105
    assert beat.due(progress=True) == beat.pace.look_at < 105, "a look costs the others nothing"
    assert beat.admits(BEAT, 104.9, 104.9), "renewals are due"
    assert beat.admits(CLAIM, 105.0)
    beat.turned(200.0, took=3600.0, waited=3599.0, decision=Decision("nothing"))
    assert beat.pace.others_until == 3810, "a suspended process waits no longer than usual"


def test_renewals_come_a_little_early_each_time_by_another_part() -> None:
    beat, ahead = Beat(interval=1000.0), []
    for _ in range(200):
        beat.turned(100.0, members=1000, took=0.5, decision=Decision("nothing"))
        ahead.append(beat.pace.ahead)
    assert 0 <= min(ahead) < 0.02
    assert 0.18 < max(ahead) <= 0.2
    assert beat.due(150.0) == 150.0
    assert beat.admits(BEAT, 150.0, 150.0)


@pytest.mark.parametrize("failures", [1, 3, 10, 10_000])
def test_pauses_grow_up_to_half_the_time_between_renewals(failures: int) -> None:
    beat = Beat()
    seconds = pause(beat.settings, beat.rng, failures, 10.0)
    assert 0.8 * min(0.1 * 2 ** min(failures, 20), 5) <= seconds <= 1.2 * 5
