"""Checkpoints that are copied, set back and go on under another name, with real Spark and real sinks."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.spark.query_process import RUNS, Query, QueryProcess
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


def test_a_rolling_restart_under_another_name(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path, pair: list[QueryProcess]
) -> None:
    """The new process is started while the old one runs, which goes on for a while. The new one takes over, or ends
    before it has read anything and is started again, as a cluster manager does."""
    options = shared_options | {"leaseDuration": "30 s"}
    old = pair[0].start(options | {"ownerId": "pod-1"}, tmp_path)
    fill(hub, 10)
    wait_for(old, 80)
    pair[1].start(options | {"ownerId": "pod-2"}, tmp_path)
    fill(hub, 10)
    wait_for(old, 160)
    old.stop()
    fill(hub, 10)
    new, error = Query(pair[1], tmp_path, tmp_path / "table"), RUNS
    while error == RUNS and len(new.rows()) < 240:
        error = pair[1].error(tmp_path, 0.5)
    if error != RUNS:
        assert "Nothing was read or written here: start it again" in error or "CONCURRENT_STREAM_LOG_UPDATE" in error
        pair[1].start(options | {"ownerId": "pod-2"}, tmp_path)
    wait_for(new, 240)
    with DeltaStore(options["leaseTable"]) as store:
        assert {each.owner for each in store.read().leases.values()} == {"pod-2"}
    new.stop()
    once_each(hub, new)


def test_a_copy_without_a_lease_table_goes_on_exactly_once_in_another_table(
    hub: Emulator, options: dict[str, str], tmp_path: Path, pair: list[QueryProcess]
) -> None:
    """The copy is made in a batch. Its table gets that batch and all later ones; the first one's gets all."""
    one, other, hold = tmp_path / "one", tmp_path / "other", tmp_path / "hold"
    query = pair[0].start(options, one, hold=hold)

    def unfinished() -> int:
        offsets, commits = ([*(one / "checkpoint" / name).glob("[0-9]*")] for name in ("offsets", "commits"))
        return len(offsets) - len(commits)

    earlier = fill(hub, 10)
    wait_for(query, 80)
    wait_until(lambda: not unfinished(), "Spark knows that the batch has ended")
    hold.touch()
    fill(hub, 10)
    wait_until(unfinished, "a batch")
    shutil.copytree(one / "checkpoint", other / "checkpoint")
    copy = pair[1].start(options, other, hold=hold)
    hold.unlink()
    everything = fill(hub, 10)
    wait_for(query, 240)
    wait_for(copy, 160)
    query.stop()
    copy.stop()
    once_each(hub, query)
    assert Counter(copy.rows()) == Counter(everything - earlier)
