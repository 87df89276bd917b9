"""Groups whose members have different strategies, as while a strategy is changed query by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from spark_ehbalance.group.model import Load
from spark_ehbalance.group.strategies import STRATEGIES, Decision, View
from spark_ehbalance.group.strategies.mixing import with_mixed_fallback
from tests.group.strategies.groups import EVEN, assert_at_rest, is_balanced, run_until
from tests.group.strategies.members import CYCLE, Members, layout_of, snapshot_of
from tests.group.strategies.rules import DECIDED, NOTICED, Rules
from tests.group.strategies.views import view_of

#: Every pair of strategies.
MIXTURES = list(combinations(EVEN, 2))
EACH_MIXTURE = pytest.mark.parametrize("names", MIXTURES, ids="-".join)

#: Within which a mixed group is balanced: most strategies decide once a cycle.
SOON = 4 * CYCLE


def group_of(strategy: str, *, partitions: int, members: int, seed: int) -> Members:
    """A group of one strategy that is balanced; some take their time."""
    group = Members(partitions, seed=seed, strategy=strategy)
    group.join_many(members)
    run_until(group, 3600, lambda: is_balanced(group))
    group.run(SOON)
    group.moves.clear()
    return group


@pytest.mark.parametrize(("old", "new"), list(zip(EVEN, EVEN[1:] + EVEN[:1], strict=True)))
def test_a_strategy_is_changed_member_by_member(old: str, new: str) -> None:
    """One of the new joins, then one of the old leaves, until only the new are there."""
    group = group_of(old, partitions=12, members=3, seed=1)
    group.strategy = new
    for name in sorted(group.nodes):
        group.join()
        run_until(group, SOON, lambda: is_balanced(group))
        group.leave(name)
        run_until(group, SOON, lambda: is_balanced(group))
    moves = len(group.moves)
    assert_at_rest(group, 600)
    assert len(group.moves) == moves
    assert moves <= 12 * 3, "each partition about twice: away from who leaves, and to who joins"


# --- when nobody owns anything -----------------------------------------------------------------------------------


def start(group: Members, names: Sequence[str]) -> None:
    """A member of each strategy, all at the same moment."""
    for name in names:
        group.strategy = name
        group.join(name)


def turns(names: Sequence[str]) -> list[list[str]]:
    """Each of the strategies comes first, the others after it."""
    return [[first, *(name for name in names if name != first)] for first in names]


def run_to_rest(group: Members, seconds: float) -> None:
    """All is shared within `seconds`, and stays as it is."""
    Rules(group)
    run_until(group, seconds, lambda: is_balanced(group))
    assert_at_rest(group, 60)


@EACH_MIXTURE
def test_members_that_start_together_share_an_empty_group(names: tuple[str, ...]) -> None:
    for order in turns(names):
        group = Members(9, seed=1)
        start(group, order)
        run_to_rest(group, SOON)
        assert len(group.moves) == 9, "who starts together shares without a move"


@EACH_MIXTURE
def test_members_take_over_from_a_mixed_group_that_crashed(names: tuple[str, ...]) -> None:
    """From all but one, who is then by itself with what it remembers, and from all."""
    group = Members(9, seed=1)
    start(group, names)
    run_until(group, SOON, lambda: is_balanced(group))
    for name in names[1:]:
        group.crash(name)
    run_to_rest(group, NOTICED + 9 * DECIDED)
    group.crash(names[0])
    start(group, [name for name in EVEN if name not in names][:2])
    run_to_rest(group, NOTICED + SOON)


def test_a_strategy_gets_only_its_own_memory() -> None:
    """A group that is mixed for a while: what was remembered before does not come back afterwards."""
    snapshot = snapshot_of(["ann", "bob"], layout_of([None, None]))
    shown: list[object] = []

    def remembering(view: View) -> Decision:
        shown.append(view.memory)
        return Decision("nothing", memory="mine")

    decide, memory = with_mixed_fallback(remembering), None
    for names in (("x", "x"), ("x", "x"), ("x", "y"), ("x", "y"), ("x", "x")):
        members = {
            id: replace(snapshot.members[id], strategy=name) for id, name in zip(("ann", "bob"), names, strict=True)
        }
        view = view_of(replace(snapshot, members=members), "ann", memory=memory)
        decision = decide(view)
        memory = decision.memory
        if names == ("x", "y"):
            assert decision.rebalance_now
            assert decision.rebalance_after
    assert shown == [None, "mine", None]


def test_beside_a_consumer_loads_count_nothing() -> None:
    """Its client balances by number, and would take back what was taken from it because of loads."""
    owners, rates = ["consumer", "consumer", "query", "query"], [900.0, 500.0, 10.0, 10.0]
    loaded = zip(layout_of(owners), rates, strict=True)
    snapshot = snapshot_of(["query", "consumer"], [replace(lease, load=Load(rate, 0.0)) for lease, rate in loaded])
    for name, moves in (("cooperative", True), ("", False)):
        rows = {id: replace(row, strategy="cooperative") for id, row in snapshot.members.items()}
        rows["consumer"] = replace(rows["consumer"], strategy=name)
        decision = STRATEGIES["cooperative"](view_of(replace(snapshot, members=rows), "query"))
        assert bool(decision.transitions) is moves
