"""Groups whose members have different strategies, such as while the strategy is changed one query at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ehbalance.group.model import Load
from spark_ehbalance.group.strategies import STRATEGIES
from tests.group.strategies.groups import EVEN, assert_at_rest, is_balanced, run_until
from tests.group.strategies.members import CYCLE, Members, layout_of, snapshot_of
from tests.group.strategies.views import view_of

#: The time within which a mixed group is balanced: most strategies decide once a cycle.
SOON = 4 * CYCLE


@pytest.mark.parametrize(("old", "new"), list(zip(EVEN, EVEN[1:] + EVEN[:1], strict=True)))
def test_strategy_can_be_changed_one_member_at_a_time(old: str, new: str) -> None:
    """A member with the new strategy joins, then an old member leaves, until only new ones are left."""
    group = Members(12, seed=1, strategy=old)
    group.join_many(3)
    run_until(group, 3600, lambda: is_balanced(group))
    group.run(SOON)
    group.moves.clear()
    group.strategy = new
    for name in sorted(group.nodes):
        group.join()
        run_until(group, SOON, lambda: is_balanced(group))
        group.leave(name)
        run_until(group, SOON, lambda: is_balanced(group))
    assert_at_rest(group)
    assert len(group.moves) <= 12 * 3, "each partition about twice: away from who leaves, and to who joins"


def test_loads_are_ignored_in_a_group_with_consumers() -> None:
    """A consumer's client balances by number and would reclaim partitions that moved because of loads."""
    owners, rates = ["consumer", "consumer", "query", "query"], [900.0, 500.0, 10.0, 10.0]
    loaded = zip(layout_of(owners), rates, strict=True)
    snapshot = snapshot_of(["query", "consumer"], [replace(lease, load=Load(rate, 0.0)) for lease, rate in loaded])
    for name, moves in (("cooperative", True), ("", False)):
        rows = {id: replace(row, strategy="cooperative") for id, row in snapshot.members.items()}
        rows["consumer"] = replace(rows["consumer"], strategy=name)
        decision = STRATEGIES["cooperative"](view_of(replace(snapshot, members=rows), "query"))
        assert bool(decision.transitions) is moves
