"""Strategies: who should own what. Each is a pure function in a file of its own, chosen by the option `strategy`."""

from __future__ import annotations

from spark_ehbalance.strategies.balanced import balanced
from spark_ehbalance.strategies.base import Decision, Strategy, View
from spark_ehbalance.strategies.cooperative import cooperative
from spark_ehbalance.strategies.greedy import greedy

STRATEGIES: dict[str, Strategy] = {"balanced": balanced, "cooperative": cooperative, "greedy": greedy}
DEFAULT_STRATEGY = "cooperative"

#: Strategies that decide anew as soon as a member or a lease changes; the others wait for their next cycle, as the
#: processors do that they come from.
PROMPT = frozenset({cooperative})

__all__ = ["DEFAULT_STRATEGY", "PROMPT", "STRATEGIES", "Decision", "Strategy", "View"]
