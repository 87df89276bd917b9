"""The CPU time for simulating a large group with each strategy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.common import Bar, Bench, Log, Row
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import load

#: 200 members and 2,000 partitions, with commits of 60 ms.
_SCENARIO = "cold-start-200"


def measure(_: Path, log: Log, *, cycles: int) -> Iterator[Row]:
    scenario = replace(load(_SCENARIO), cycles=cycles)
    for strategy in STRATEGIES:
        log(f"{strategy}, {cycles} cycles of {scenario.members} members × {scenario.partitions:,} partitions")
        began = time.process_time()
        simulate(scenario, strategy)
        yield Row(strategy, "s CPU", [time.process_time() - began])


BENCH = Bench(
    "simulator",
    measure,
    compared_with="",
    short={"cycles": 1},
    full={"cycles": 100},
    bars={strategy: Bar("most", 60.0) for strategy in STRATEGIES},
)
