"""The storm finds faults of the past in one seed each; `python -m storm.faults` looks for them in any."""

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
def test_a_fault_of_the_past_is_found(fault: PastFault) -> None:
    with fault.apply():
        violation = play(draw(fault.seed)).violation
    assert violation is not None
    assert violation.name in fault.invariants


@pytest.mark.parametrize("fault", PAST_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_past_can_still_be_applied(fault: PastFault) -> None:
    module, source = fault.load()
    assert functions(source) != functions(inspect.getsource(module))


def test_a_found_fault_is_shrunk() -> None:
    fault = FOUND_SOON[0]
    plan = draw(fault.seed)
    with fault.apply():
        fewest, result = shrink(plan, play(plan))
    assert result.violation is not None
    assert result.violation.name in fault.invariants
    assert len(fewest.faults) < len(plan.faults) / 5
