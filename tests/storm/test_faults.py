"""The storm finds past bugs, each with a known seed; `python -m storm.faults` searches for them with any seeds."""

from __future__ import annotations

import inspect

import pytest

from storm.faults import PAST_FAULTS, PastFault
from storm.plan import draw
from storm.rewriting import functions
from storm.shrink import shrink
from storm.world import play

FOUND_SOON = [fault for fault in PAST_FAULTS if fault.seed is not None]


@pytest.mark.parametrize("fault", FOUND_SOON, ids=lambda fault: fault.name)
def test_storm_finds_past_bug(fault: PastFault) -> None:
    with fault.apply():
        violation = play(draw(fault.seed)).violation
    assert violation is not None
    assert violation.name in fault.invariants


@pytest.mark.parametrize("fault", PAST_FAULTS, ids=lambda fault: fault.name)
def test_past_bug_can_still_be_applied(fault: PastFault) -> None:
    module, source = fault.load()
    assert functions(source) != functions(inspect.getsource(module))


def test_shrink_removes_needless_faults() -> None:
    fault = next(fault for fault in FOUND_SOON if fault.name.startswith("a lease counts from the end of a read"))
    plan = draw(fault.seed)
    with fault.apply():
        fewest, result = shrink(plan, play(plan))
    assert result.violation is not None
    assert result.violation.name in fault.invariants
    assert len(fewest.faults) < len(plan.faults) / 5
