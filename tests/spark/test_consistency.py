"""Checkpoints that are copied or continue under another name, with real Spark and real sinks.

`tests/query/test_consistency.py` covers all changes of a checkpoint.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.spark.query_process import RUNS, Query, QueryProcess
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


def wait_for(query: Query, count: int) -> None:
    wait_until(lambda: len(query.rows()) >= count, f"{count} rows are written", timeout=60)


def test_rolling_restart_fences_the_old_process_and_a_stale_copy_is_rejected(
    hub: Emulator,
    shared_options: dict[str, str],
    tmp_path: Path,
    processes: Callable[[int], list[QueryProcess]],
) -> None:
    """All processes write with the same query id to the same table, so Delta would skip the stale copy's batches. If
    two processes use the same checkpoint, Spark can end either (`CONCURRENT_STREAM_LOG_UPDATE`); a cluster manager
    restarts it."""
    first, second, third = processes(3)
    one, other = tmp_path / "one", tmp_path / "other"
    options = shared_options | {"leaseDuration": "30 s"}
    old = first.start(options | {"ownerId": "pod-1"}, one)
    fill(hub, 10)
    wait_for(old, 80)
    shutil.copytree(one / "checkpoint", other / "checkpoint")
    fill(hub, 10)
    wait_for(old, 160)
    second.start(options | {"ownerId": "pod-2"}, one)
    everything = fill(hub, 10)
    new, fenced = Query(second, one, one / "table"), RUNS
    while fenced == RUNS or len(new.rows()) < 240:
        if (error := second.error(one, 1)) != RUNS:
            # Delta skips a known batch before it contacts a planner, so nobody is fenced.
            assert "CONCURRENT" in error or "EHB_CHECKPOINT_STALE" in error
            second.start(options | {"ownerId": "pod-2"}, one)
        fenced = first.error(one, 1) if fenced == RUNS else fenced
    assert "EHB_FENCED" in fenced or "CONCURRENT" in fenced or "a later process" in fenced
    new.stop()
    third.start(options | {"ownerId": "other"}, other, table=one / "table")
    assert "EHB_CHECKPOINT_STALE" in third.error(other)
    assert Counter(new.rows()) == Counter(everything)
