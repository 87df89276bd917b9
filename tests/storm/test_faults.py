"""The storm finds faults of the past in one seed each; `python -m storm.faults` looks for them in any."""

from __future__ import annotations

import pytest

from storm.faults import PAST_FAULTS, PastFault
from storm.plan import draw
from storm.shrink import shrink
from storm.world import play


@pytest.mark.parametrize("fault", PAST_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_past_is_found(fault: PastFault) -> None:
    with fault.put_back():
        violation = None if fault.seed is None else play(draw(fault.seed)).violation
    assert fault.seed is None or (violation is not None and violation.name in fault.invariants)


def test_a_found_fault_is_shrunk() -> None:
    fault = next(fault for fault in PAST_FAULTS if fault.seed is not None)
    plan = draw(fault.seed)
    with fault.put_back():
        fewest, result = shrink(plan, play(plan))
    assert result.violation is not None
    assert result.violation.name in fault.invariants
    assert len(fewest.faults) < len(plan.faults) / 5
