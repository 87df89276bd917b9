"""Streaming queries without a JVM share a hub under each strategy; `tests/spark/test_strategies.py` has Spark's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.strategies import STRATEGIES
from tests.consumer.mixed import PARAMETERS, STEALING, Mixed


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_query_joins_and_leaves(emulator: Emulator, tmp_path: Path, strategy: str) -> None:
    mixed = Mixed(emulator, tmp_path, lease=6)  # none is to expire, also not on a busy machine
    mixed.group.raw |= {"strategy": strategy, **PARAMETERS.get(strategy, {})}
    try:
        mixed.query("a")
        mixed.wait_shares(12)
        mixed.query("b")
        mixed.wait_shares(6, 6)
        mixed.end("b", signal.SIGTERM)
        mixed.wait_shares(12)
        mixed.everything_was_read()
    finally:
        mixed.close()
    assert strategy in STEALING or not mixed.duplicates(), "what moves by plan is read once"
