"""What an operator has decided about is left alone by every strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.strategies import STRATEGIES, Decision, Strategy, View
from tests.group.strategies.groups import EVEN, FEW, seeds
from tests.group.strategies.members import Members, layout_of


def with_pins(strategy: Strategy, pinned: frozenset[str]) -> Strategy:
    def decide(view: View) -> Decision:
        return strategy(replace(view, pinned=pinned))

    return decide


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@FEW
@given(data=st.data(), members=st.integers(1, 6), count=st.integers(1, 24), seed=seeds)
def test_pinned_partitions_are_neither_taken_nor_given(
    strategy: str, data: st.DataObject, members: int, count: int, seed: int
) -> None:
    names = [f"member-{number}" for number in range(members)]
    owners = data.draw(st.lists(st.sampled_from([*names, None]), min_size=count, max_size=count))
    pinned = frozenset(data.draw(st.sets(st.integers(0, count - 1).map(str))))
    chosen = {name: with_pins(each, pinned) for name, each in STRATEGIES.items()}
    group = Members(leases=layout_of(owners), seed=seed, strategy=strategy, chosen=chosen)
    group.join(*names)
    group.run(600)
    group.join_many(2)
    group.run(600)
    by_partition = dict(zip(group.partitions, owners, strict=True))
    assert {p: group.snapshot.leases[p].owner for p in pinned} == {p: by_partition[p] for p in pinned}
    assert all(lease.owner for p, lease in group.snapshot.leases.items() if p not in pinned)
    free = {name: sum(e.partition not in pinned for e in group.snapshot.owned_by(name)) for name in group.nodes}
    counts = group.counts()
    share = -(-count // len(counts))
    for name, owned in counts.items():
        # Whoever has more than a share, and two more than somebody else, has nothing to give but what is pinned.
        assert strategy not in EVEN or not free[name] or owned <= max(share, min(counts.values()) + 1)
