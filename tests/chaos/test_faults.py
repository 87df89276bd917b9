"""The schedule of the chaos run, and the outage of the lease table."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.faults import ADD, KINDS, OUTAGE, PAUSES, schedule
from chaos.outage import Outage
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.changes import Heartbeat, Join
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore

ANN = Author("ann", "first")


def test_a_seed_determines_the_schedule() -> None:
    assert schedule(7, 600, 6.0) == schedule(7, 600, 6.0)
    assert schedule(7, 600, 6.0) != schedule(8, 600, 6.0)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_occurs_before_any_is_repeated(seed: int) -> None:
    steps = schedule(seed, 600, 6.0)
    assert {step.kind for step in steps[: len(KINDS)]} == set(KINDS)
    assert sum(step.kind == ADD for step in steps) == 2
    assert all(0 <= step.at < 600 and 0 <= step.victim < 1 for step in steps)
    assert all(step.seconds > 6.0 for step in steps if step.kind in PAUSES | {OUTAGE})


def test_during_an_outage_the_table_cannot_be_read_or_written(tmp_path: Path) -> None:
    held, other = DeltaStore(str(tmp_path / "leases")), DeltaStore(str(tmp_path / "leases"))
    held.create(Group("n", "h", "c"))
    snapshot = commit(held, held.read(), [Join(by=ANN, at_ms=1)]).after
    outage = Outage(tmp_path / "leases")

    outage.begin()
    for attempt in (held.read, other.read, lambda: commit(held, snapshot, [Heartbeat(by=ANN, at_ms=2)])):
        with pytest.raises(StoreUnavailableError):
            attempt()
    with pytest.raises(StoreUnavailableError):
        DeltaStore(str(tmp_path / "leases")).create(Group("n", "h", "c"))
    outage.end()
    outage.end()

    assert held.read() == other.read() == snapshot
    after = commit(held, snapshot, [Heartbeat(by=ANN, at_ms=2)]).after
    assert after.version == snapshot.version + 1
