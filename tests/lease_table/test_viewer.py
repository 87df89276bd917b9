"""Views of a group over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table import viewer as viewer_module
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.metrics.definitions import STORE_AVAILABLE
from spark_ehbalance.metrics.table import view_samples
from tests.group.test_group_view import NOW, ago, claim, lease, member, view

UNAVAILABLE = StoreUnavailableError("EHB_LEASE_TABLE_MISSING", location="leases")


@dataclass
class FakeTable:
    snapshot: Snapshot
    rows: list[OwnershipChange] = field(default_factory=list)
    capabilities = LeaseStore.capabilities
    reads = 0
    is_away = False

    def read(self) -> Snapshot:
        self.reads += 1
        if self.is_away:
            raise UNAVAILABLE
        return self.snapshot

    def follow_history(self, since_ms: int) -> list[OwnershipChange]:
        return self.rows


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the first view."""
    passed = [0.0]
    monkeypatch.setattr(viewer_module, "now_ms", lambda: NOW + round(1000 * passed[0]))
    monkeypatch.setattr(viewer_module, "monotonic", lambda: passed[0])
    return passed


def test_renewals_are_dated_with_the_viewers_clock(clock: list[float]) -> None:
    slow = view(lease("0", "ann"), members=[member("ann", renewed_at_ms=ago(400))]).snapshot
    table = FakeTable(slow)
    viewer = viewer_module.Viewer(cast(Any, table))
    assert viewer.view().last_seen_ms["ann"] == ago(3), "nothing but stored times is known"
    table.snapshot = replace(slow, members={"ann": replace(slow.members["ann"], renewal=10)})
    clock[0] = 5
    assert viewer.view().last_seen_ms["ann"] == NOW + 5000
    clock[0] = 45
    assert viewer.view().findings[0].code == "no_live_member"


def test_one_hour_of_history_is_kept_without_duplicates(clock: list[float]) -> None:
    old, new = claim(3500, None, "ann"), claim(1, "ann", "bob")
    table = FakeTable(view(lease("0", "ann")).snapshot, [new, old])
    viewer = viewer_module.Viewer(cast(Any, table))
    assert viewer.view().history == [old, new]
    table.rows = [new]
    assert viewer.view().history == [old, new]
    clock[0] = 200
    assert viewer.view().history == [new]


def test_viewers_share_a_read_and_an_outage_keeps_the_last_view(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    table = FakeTable(view(lease("0", "ann")).snapshot)
    viewer = viewer_module.Viewer(cast(Any, table))
    assert {viewer.latest().problem for _ in range(9)} == {""}
    assert table.reads == 1
    table.is_away = True
    for clock[0] in (1, 2):
        found = viewer.latest()
        assert (found.problem, found.findings[0].code, found.snapshot) == (
            str(UNAVAILABLE),
            "table_unreadable",
            table.snapshot,
        )
    assert caplog.messages == [str(UNAVAILABLE)]
    assert [(sample.metric, sample.value) for sample in view_samples(found)] == [(STORE_AVAILABLE, 0)]
    table.is_away, clock[0] = False, 3
    assert viewer.latest().findings == []
