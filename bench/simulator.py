"""The simulator: what a large group takes to play with each strategy, and what then becomes of its cold start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.common import Bar, Log, Row
from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import load
from spark_ehbalance.strategies import DEFAULT_STRATEGY, STRATEGIES

SUBJECT = "simulator"

#: 200 members and 2,000 partitions, with commits of 60 ms.
_SCENARIO = "cold-start-200"

#: Seconds of CPU that playing it may take, and seconds of its own time in which the default strategy balances it.
_MOST_SECONDS, _BALANCED = 60.0, 180.0


def measure(_: Path, log: Log, *, cycles: int) -> Iterator[Row]:
    """Play so many balance intervals with each strategy."""
    scenario = replace(load(_SCENARIO), cycles=cycles)
    group = f"{scenario.members} members × {scenario.partitions:,} partitions"
    for strategy in STRATEGIES:
        log(f"simulator: {strategy}, {cycles} cycles of {group}")
        began = time.process_time()
        result = simulate(scenario, strategy)
        seconds = time.process_time() - began
        yield Row(SUBJECT, f"{cycles} cycles, {group}, {strategy}", "s CPU", (seconds,), Bar("most", _MOST_SECONDS))
        if result.seconds_to_balance is None:
            continue
        bar = Bar("most", _BALANCED) if strategy == DEFAULT_STRATEGY else None
        yield Row(SUBJECT, f"cold start until balanced, {strategy}", "s", (result.seconds_to_balance,), bar)
