"""A few lives of a storm, and engines with faults that it must find; `make storm` plays many."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.group.changes import Stall
from spark_ehbalance.group.member.membership import Holding, Membership
from spark_ehbalance.group.working_copy import WorkingCopy
from spark_ehbalance.query.batch_in_flight import BatchInFlight
from storm.lives import Life, live, shortest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


#: With all strategies, calm and wild.
SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_life_loses_events_or_has_two_owners(seed: int) -> None:
    violation, story = live(Life.of(seed))
    assert violation is None, "\n".join([*story, violation or ""])


def never_lapse(self: Membership, holdings: Mapping[str, Holding], now: float) -> Mapping[str, Holding]:
    return holdings


def finish_nothing(self: BatchInFlight) -> dict[str, object]:
    return {}


def stall_only(self: Stall, state: WorkingCopy) -> None:
    lease = state.leases[self.partition]
    state.leases[self.partition] = replace(lease, owner=None, stalled=lease.stalled + 1)


FAULTS: Mapping[str, tuple[Any, str, Any, str]] = {
    "leases never lapse": (Membership, "valid", never_lapse, "may both plan"),
    "a stall does not raise the epoch": (Stall, "carry_out", stall_only, "never written"),
    "nothing is ever finished": (BatchInFlight, "progress", finish_nothing, "written more than once"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_story_is_short(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken, violation = FAULTS[fault]
    monkeypatch.setattr(where, name, broken)
    found = next(life for life in map(Life.of, range(400)) if violation in (live(life).violation or ""))
    short = shortest(found)
    assert live(short).violation
    assert len(short.happenings) < len(found.happenings)
