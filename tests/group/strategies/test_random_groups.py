"""Groups with all that may come together: strategies, limits, pins, joins, leaves, crashes, restarts, pauses, growth.

`Rules` says what must hold at every moment, and how long a partition may be unread at the most.
"""

from __future__ import annotations

import random

import pytest

from spark_ehbalance.group.strategies import STRATEGIES
from tests.group.strategies.rules import RandomEvents


@pytest.mark.parametrize("seed", range(100))
def test_a_random_group_keeps_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choices(sorted(STRATEGIES), k=rng.randint(1, 4))
    random_events = RandomEvents(seed, names, partitions=rng.randint(1, 20))
    random_events.begin(names)
    random_events.run(rng.choice((0, 1, 15, 80)))
    random_events.play(6)
