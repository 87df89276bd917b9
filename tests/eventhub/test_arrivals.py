"""Enqueue times estimated from the hub's responses."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.arrivals import Arrivals


@pytest.fixture
def arrivals() -> Arrivals:
    """A partition that had 5 events at time 200 (the last from 100) and, some responses later, 8 at 800 (from 760)."""
    made = Arrivals()
    made.record("0", 5, 100, 200)
    made.record("0", 5, 100, 700)
    made.record("0", 8, 760, 800)
    return made


@pytest.mark.parametrize(
    ("number", "known"),
    [
        (3, None),  # the event existed before
        (4, 100),
        (5, 700),  # after the last response without the event
        (6, 700),
        (7, 760),
        (8, None),  # the event has not arrived
    ],
)
def test_enqueue_time_lies_between_two_responses(arrivals: Arrivals, number: int, known: int | None) -> None:
    assert arrivals.enqueued_ms("0", number) == known
    assert arrivals.enqueued_ms("1", number) is None


def test_clock_ahead_of_the_hubs_is_limited(arrivals: Arrivals) -> None:
    arrivals.record("0", 10, 790, 900)
    assert arrivals.enqueued_ms("0", 8) == 790


def test_recreated_hub_drops_marks(arrivals: Arrivals) -> None:
    arrivals.record("0", 2, 1000, 1100)
    assert arrivals.enqueued_ms("0", 5) is None
    arrivals.record("0", 0, None, 1200)
    arrivals.record("0", 6, 1300, 1400)
    assert arrivals.enqueued_ms("0", 4) == 1200


@pytest.mark.parametrize("seed", range(6))
def test_estimate_is_never_late_and_errs_by_a_fraction_of_the_age(seed: int) -> None:
    """Events arrive occasionally for a day; the hub responds every 20 s."""
    rng, arrivals = random.Random(seed), Arrivals()
    times = list(accumulate(rng.choice((10, 500, 20_000, 200_000)) for _ in range(1500)))
    arrivals.record("0", 0, None, 0)
    came = 0
    for polled in range(0, times[-1] + 2000, 20_000):
        while came < len(times) and times[came] <= polled:
            came += 1
        arrivals.record("0", came, times[came - 1] if came else None, polled)
    for number in range(came):
        known = arrivals.enqueued_ms("0", number)
        assert known is not None
        assert known <= times[number]
        assert times[number] - known <= 20_000 + 0.7 * (times[-1] - times[number])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 5000)), min_size=30, max_size=80))
def test_any_clock_difference_is_tolerated(answers: list[tuple[int, int, int]]) -> None:
    arrivals, end = Arrivals(), 0
    for more, enqueued_ms, asked_ms in answers:
        end += 1 + more
        arrivals.record("0", end, enqueued_ms, asked_ms)
        known = arrivals.enqueued_ms("0", end - 1)
        assert known == enqueued_ms
