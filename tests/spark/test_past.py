"""Checkpoints that are copied, set back and go on under another name, with real Spark and real sinks."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.spark.query_process import Query, QueryProcess
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


def wait_for(query: Query, count: int) -> None:
    wait_until(lambda: len(query.rows()) >= count, f"{count} rows are written", timeout=60)


def once_each(hub: Emulator, query: Query) -> None:
    ends = {str(p): hub.partition_state(HUB, p).next_sequence_number for p in range(8)}
    assert Counter(query.rows()) == Counter((p, number) for p, end in ends.items() for number in range(end))


def test_a_copy_of_a_checkpoint_that_is_read_with_is_refused(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path, pair: list[QueryProcess]
) -> None:
    """Into one table: with one query id Delta would leave out the batches of the other. And the one that runs goes on.
    A copy that is older is refused also when that has ended."""
    one, other = tmp_path / "one", tmp_path / "other"
    query = pair[0].start(shared_options | {"ownerId": "one"}, one)
    fill(hub, 10)
    wait_for(query, 80)
    shutil.copytree(one / "checkpoint", other / "checkpoint")
    pair[1].start(shared_options | {"ownerId": "other"}, other, table=one / "table")
    fill(hub, 10)
    wait_for(query, 160)
    error = pair[1].error(other)
    assert "this query runs already as one" in error or "is a copy of one that went on" in error
    query.stop()
    pair[1].start(shared_options | {"ownerId": "other"}, other, table=one / "table")
    assert "is a copy of one that went on" in pair[1].error(other)
    fill(hub, 10)
    shutil.rmtree(other / "checkpoint")  # as the error advises
    again = pair[1].start(shared_options, other, table=one / "table")
    wait_for(again, 240)
    again.stop()
    once_each(hub, again)


def test_a_query_that_was_killed_in_a_batch_goes_on_under_another_name(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path, pair: list[QueryProcess]
) -> None:
    """As a pod does. `once` asks the planner that runs, not the one that has planned the batch."""
    options, hold = shared_options | {"leaseDuration": "60 s"}, tmp_path / "hold"
    pair[0].start(options | {"ownerId": "pod-1"}, tmp_path, hold=hold)
    hold.touch()
    fill(hub, 10)
    offsets = tmp_path / "checkpoint" / "offsets"
    wait_until(lambda: len([*offsets.glob("[0-9]*")]) > len([*(offsets.parent / "commits").glob("[0-9]*")]), "a batch")
    pair[0].kill()
    hold.unlink()
    again = pair[1].start(options | {"ownerId": "pod-2"}, tmp_path, hold=hold)
    wait_for(again, 80)
    fill(hub, 10)
    wait_for(again, 160)
    with DeltaStore(options["leaseTable"]) as store:
        assert {each.owner for each in store.read().leases.values()} == {"pod-2"}
    again.stop()
    once_each(hub, again)
