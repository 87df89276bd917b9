"""Planners assembled as a query does it, using the emulator without its network; most have no lease table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.clock import monotonic
from spark_ehbalance.query import keeper
from spark_ehbalance.query.assembly import wait_until_joined
from spark_ehbalance.query.offsets import StreamOffset
from tests.query.queries import PARTITIONS, Group
from tests.query.support import HUB

pytestmark = pytest.mark.usefixtures("without_network")


def test_restart_during_an_empty_first_batch_keeps_the_logged_lineage(group: Group) -> None:
    """Spark requests a new initial offset, but writers look the planner up by the logged lineage."""
    query = group.query("a", StreamOffset("a", lineage="new"), StreamOffset("a", lineage="logged"))
    assert query.planner.address is not None
    assert query.planner.address.lineage == "logged"


def test_without_lease_table_the_offset_contains_all_progress(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    group.append(2)
    first = group.query("a", shared=False)
    first.read(16)
    group.emulator.append(HUB, 3, [b"x"] * 4)
    end = first.batch()
    named = {p: (range_.start, range_.end) for p, range_ in end.ranges.items()}
    assert named == {str(p): (2, 6 if p == 3 else 2) for p in range(PARTITIONS)}
    ranges = first.run(end)
    assert [(range_.partition, range_.start, range_.end) for range_ in ranges] == [("3", 2, 6)], (
        "no task without events"
    )
    first.stop()

    group.append(1)
    again = group.query("a", StreamOffset.from_json(json.loads(json.dumps(end.to_json()))), shared=False)
    again.read(8)
    assert Counter(first.seen + again.seen) == group.everything()
    assert list(tmp_path.iterdir()) == []


def test_without_lease_table_a_logged_batch_is_reread_even_after_a_suspension(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other query reads it, and the offset would count it as read."""
    group.append(2)
    first = group.query("a", shared=False)
    end = first.batch()
    first.stop()
    again = group.query("a", unfinished=end, shared=False)
    monkeypatch.setattr(keeper, "monotonic", lambda: monotonic() + 3600)
    again.run(end)
    assert Counter(again.seen) == group.everything()


@pytest.mark.usefixtures("frequent_partition_listing")
def test_without_lease_table_new_partitions_start_at_their_first_event(group: Group) -> None:
    query = group.query("a", shared=False, startingPosition="latest")
    end = query.batch()
    query.run(end)
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 8, [b"x"] * 3)
    query.read(3)
    assert query.seen == [("8", 0), ("8", 1), ("8", 2)]
    query.stop()
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 9, [b"x"] * 2)
    again = group.query("a", query.finished, shared=False, startingPosition="latest")
    again.read(2)
    assert again.seen == [("9", 0), ("9", 1)]


@pytest.mark.parametrize(
    ("owned", "has_joined", "waits"),
    [([8], True, 1), ([300, 600, 1024], True, 3), ([0, 8], False, 1), ([300, 300, 1024], False, 2)],
)
def test_joining_query_keeps_waiting_while_it_gains_partitions(owned: list[int], has_joined: bool, waits: int) -> None:
    """The query owns `owned[n]` partitions after wait `n`; after the last wait, the group is balanced."""
    waited: list[float] = []

    def wait_balanced(timeout: float, *, full_share: bool) -> bool:
        waited.append(timeout)
        return len(waited) == len(owned)

    keeper: Any = SimpleNamespace(wait_balanced=wait_balanced, readable=lambda: range(owned[len(waited) - 1]))
    assert wait_until_joined(keeper, 60) is has_joined
    assert len(waited) == waits
