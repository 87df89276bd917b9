"""A few runs of a storm, and engines with faults that it must find; `make storm` plays many."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.group.changes import Stall
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.membership import Holding, Membership
from spark_ehbalance.group.working_copy import WorkingCopy
from spark_ehbalance.query import positions
from spark_ehbalance.query.batch_in_flight import BatchInFlight
from spark_ehbalance.query.offsets import EpochPosition, LoggedBatch
from spark_ehbalance.query.positions import _progress
from storm.runs import Run, play, shortest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


#: With all strategies, calm and wild; and those that have found something.
SEEDS = [*range(40), 1843, 1873]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_run_loses_events_or_has_two_owners(seed: int) -> None:
    violation, story, _ = play(Run.from_seed(seed))
    assert violation is None, "\n".join([*story, violation or ""])


def never_lapse(self: Membership, holdings: Mapping[str, Holding], now: float) -> Mapping[str, Holding]:
    return holdings


def leaves(self: MemberEngine) -> bool:
    return self.query.leaving or self._member.look.drained


def finish_nothing(self: BatchInFlight) -> dict[str, object]:
    return {}


def stall_only(self: Stall, state: WorkingCopy) -> None:
    lease = state.leases[self.partition]
    state.leases[self.partition] = replace(lease, owner=None, stalled=lease.stalled + 1)


def believe_spark(log: Sequence[LoggedBatch], *, shared: bool) -> dict[str, tuple[EpochPosition, int]]:
    """Count what Spark calls finished to its end."""
    return _progress(log, shared=False)


FAULTS: Mapping[str, tuple[Any, str, Any, str]] = {
    "leases never lapse": (Membership, "valid", never_lapse, "may both plan"),
    "a stall does not raise the epoch": (Stall, "carry_out", stall_only, "never written"),
    "a query that hangs counts as leaving": (MemberEngine, "is_leaving", property(leaves), "is not read"),
    "nothing is ever finished": (BatchInFlight, "progress", finish_nothing, "written more than once"),
    "positions believe Spark": (positions, "_progress", believe_spark, "was never written"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken, violation = FAULTS[fault]
    monkeypatch.setattr(where, name, broken)
    assert any(violation in (play(Run.from_seed(seed)).violation or "") for seed in range(400))


def test_a_story_is_as_short_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "valid", never_lapse)
    found = next(run for run in map(Run.from_seed, range(400)) if play(run).violation)
    short = shortest(found)
    assert play(short).violation
    assert len(short.actions) < len(found.actions) / 4
