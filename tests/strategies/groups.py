"""What tests of strategies that move by handover have in common: groups of `Members`, and what is to hold of them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.strategies.members import Members, layout_of

FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(FEW, max_examples=20)

seeds = st.integers(0, 2**32)


@st.composite
def groups(draw: st.DrawFn, strategy: str, most_members: int, most_partitions: int) -> Members:
    """Members that come back at the same moment to any layout: of their own partitions, of others' who are gone, and
    of free ones."""
    names = [f"member-{number}" for number in range(draw(st.integers(1, most_members)))]
    count = draw(st.integers(1, most_partitions))
    favourites = draw(st.lists(st.sampled_from([*names, "gone", None]), min_size=1, max_size=20))
    group = Members(leases=layout_of((favourites * count)[:count]), seed=draw(seeds), strategy=strategy)
    group.join(*names)
    return group


def is_balanced(group: Members) -> bool:
    """Whether the running own everything, nobody two more than somebody else."""
    counts = group.counts().values()
    return sum(counts) == len(group.partitions) and max(counts) - min(counts) <= 1


def run_until(group: Members, seconds: float, condition: Callable[[], bool]) -> None:
    """Let time pass until `condition` holds, which must be within `seconds`."""
    until = group.now + seconds
    while not condition():
        assert group.now < until, f"not within {seconds:g} s: {group.counts()}"
        group.run(1.0)


def assert_at_rest(group: Members, seconds: float = 300.0) -> None:
    """Once moves under way have ended nothing moves, and the group stays balanced."""
    group.run(30.0)
    layout = group.layout()
    group.run(seconds)
    assert group.layout() == layout
    assert is_balanced(group)
    assert not group.snapshot.ownership.pending
