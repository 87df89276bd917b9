"""Strategies: who should own what. Each is a pure function in a file of its own, chosen by the option `strategy`."""

from __future__ import annotations

from spark_ehbalance.strategies.balanced import balanced
from spark_ehbalance.strategies.base import Decision, Strategy, View
from spark_ehbalance.strategies.greedy import greedy

STRATEGIES: dict[str, Strategy] = {"balanced": balanced, "greedy": greedy}
DEFAULT_STRATEGY = "greedy"

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Decision", "Strategy", "View"]
