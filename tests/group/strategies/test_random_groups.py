"""Groups with all that may come together: strategies, limits, pins, joins, leaves, crashes, restarts, pauses, growth.

`Rules` says what must hold at every moment, and how long a partition may be unread at the most.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.strategies import STRATEGIES
from tests.group.strategies.groups import seeds
from tests.group.strategies.rules import RandomEvents


@pytest.mark.parametrize("seed", range(200))
def test_a_random_group_keeps_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choices(sorted(STRATEGIES), k=rng.randint(1, 4))
    random_events = RandomEvents(seed, names, partitions=rng.randint(1, 20))
    random_events.begin(names)
    random_events.run(rng.choice((0, 1, 15, 80)))
    random_events.play(6)


@settings(max_examples=50, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(STRATEGIES)), min_size=1, max_size=4),
    partitions=st.integers(1, 20),
    warm=st.sampled_from([0, 1, 15, 80]),
    events=st.integers(1, 10),
    seed=seeds,
)
def test_any_group_keeps_the_rules(names: list[str], partitions: int, warm: int, events: int, seed: int) -> None:
    random_events = RandomEvents(seed, names, partitions=partitions)
    random_events.begin(names)
    random_events.run(warm)
    random_events.play(events)
