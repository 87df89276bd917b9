"""What must hold for any group whose strategy makes it even, however it began and whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.strategies import DECLARATIONS
from tests.group.strategies.groups import (
    FEW,
    assert_at_rest,
    assert_balanced,
    assert_stable,
    groups,
    is_balanced,
    run_until,
    settle,
)
from tests.group.strategies.members import LEASE

STEALING = pytest.mark.parametrize("strategy", [name for name, each in DECLARATIONS.items() if each.moves == "steal"])
#: Strategies that move by handover, and the seconds within which a group is balanced, whatever happened before: the
#: transfer shedder waits for some cycles and cools down. `cooperative` has stricter tests of its own.
HANDOVER = pytest.mark.parametrize(("strategy", "soon"), [("race", 90.0), ("transfer", 1920.0)])
MANY = settings(FEW, max_examples=15)


@STEALING
@MANY
@given(data=st.data(), late=st.sampled_from([0.0, 0.3]))
def test_any_layout_comes_to_a_balanced_rest(strategy: str, data: st.DataObject, late: float) -> None:
    group = data.draw(groups(strategy, 16, 64))
    settle(group, 20 + 4 * len(group.partitions), late=late)
    settle(group, 20 + 2 * len(group.partitions))  # a cycle without moves may have been one of refusals
    assert_balanced(group)
    assert_stable(group, 5)


@STEALING
@MANY
@given(data=st.data())
def test_a_group_comes_to_rest_after_anything_that_happens(strategy: str, data: st.DataObject) -> None:
    """Joins, leaves, crashes and new partitions while members act on what was a cycle ago."""
    group = data.draw(groups(strategy, 16, 64))
    for _ in range(data.draw(st.integers(1, 12))):
        names = sorted(group.nodes)
        match data.draw(st.sampled_from(["join", "leave", "crash", "grow", "wait"])):
            case "join" if len(names) < 16:
                group.join_many(data.draw(st.integers(1, 3)))
            case "leave" if len(names) > 1:
                group.leave(data.draw(st.sampled_from(names)))
            case "crash" if len(names) > 1:
                group.crash(data.draw(st.sampled_from(names)))
            case "grow" if len(group.partitions) < 64:
                group.add_partitions(data.draw(st.integers(1, 64 - len(group.partitions))))
        group.cycles(data.draw(st.integers(0, 3)), late=0.5)
    settle(group, 20 + 2 * len(group.partitions))
    assert_balanced(group)
    assert_stable(group, 5)


@HANDOVER
@FEW
@given(data=st.data())
def test_any_layout_is_balanced_by_handover_also_after_joins_leaves_and_crashes(
    strategy: str, soon: float, data: st.DataObject
) -> None:
    group = data.draw(groups(strategy, 8, 24))
    group.run(soon / 4)
    for _ in range(data.draw(st.sampled_from([0, 3]))):
        match data.draw(st.sampled_from(["join", "leave", "crash"])):
            case "leave" if len(group.nodes) > 1:
                group.leave(data.draw(st.sampled_from(sorted(group.nodes))))
            case "crash" if len(group.nodes) > 1:
                group.crash(data.draw(st.sampled_from(sorted(group.nodes))))
            case _:
                group.join_many(data.draw(st.integers(1, 3)))
        run_until(group, LEASE + 60, lambda: sum(group.counts().values()) == len(group.partitions))
    run_until(group, soon, lambda: is_balanced(group))
    assert_at_rest(group, 480)
