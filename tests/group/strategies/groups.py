"""Helpers for tests with whole groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.strategies import DECLARATIONS
from tests.group.strategies.members import Members, layout_of

FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=100)  # for single decisions

seeds = st.integers(0, 2**32)

#: The strategies; all of them balance a group.
EVEN = sorted(DECLARATIONS)


def given_layout(draw: st.DrawFn, names: Sequence[str], count: int) -> list[Lease]:
    """`count` partitions with random owners: members in `names`, a former member, or none."""
    favourites = draw(st.lists(st.sampled_from([*names, "gone", None]), min_size=1, max_size=40))
    return layout_of((favourites * count)[:count])


def is_balanced(group: Members) -> bool:
    """Whether running members own all partitions, and their counts differ by at most one."""
    counts = group.counts().values()
    return sum(counts) == len(group.partitions) and max(counts) - min(counts) <= 1


def run_until(group: Members, seconds: float, condition: Callable[[], bool]) -> None:
    """Run the group until `condition` holds, for at most `seconds`."""
    until = group.now + seconds
    while not condition():
        assert group.now < until, (
            f"not within {seconds:g} s: {group.counts()}; CONTRIBUTING.md lists what a strategy may declare instead"
        )
        group.run(1.0)


def assert_at_rest(group: Members, seconds: float = 300.0) -> None:
    """Assert that no partition moves after the pending moves, and that running members have no pending handovers."""
    group.run(30.0)
    layout = group.layout()
    group.run(seconds)
    assert group.layout() == layout
    assert not [lease for name in group.nodes for lease in group.snapshot.owned_by(name) if lease.handover]
