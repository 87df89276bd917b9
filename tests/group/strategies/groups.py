"""What tests of strategies that move by handover have in common: groups of `Members`, and what must hold for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.strategies import DECLARATIONS
from spark_ehbalance.simulation.ideal import fair_counts
from tests.group.strategies.members import CYCLE, Members, Move, layout_of

FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(FEW, max_examples=10)

seeds = st.integers(0, 2**32)


def given_layout(draw: st.DrawFn, names: Sequence[str], count: int) -> list[Lease]:
    """`count` partitions with arbitrary owners: some of `names`, a member that is gone, or nobody."""
    favourites = draw(st.lists(st.sampled_from([*names, "gone", None]), min_size=1, max_size=40))
    return layout_of((favourites * count)[:count])


@st.composite
def groups(draw: st.DrawFn, strategy: str, most_members: int, most_partitions: int) -> Members:
    """Members that come back at the same moment to an arbitrary layout."""
    names = [f"member-{number}" for number in range(draw(st.integers(1, most_members)))]
    leases = given_layout(draw, names, draw(st.integers(1, most_partitions)))
    group = Members(leases=leases, seed=draw(seeds), strategy=strategy)
    group.join(*names)
    return group


def started(partitions: int, *names: str, members: int = 0, seed: int = 1, rest: float = 2 * CYCLE) -> Members:
    """A group under `cooperative` that has shared its partitions: of `names`, or of so many members."""
    group = Members(partitions, seed=seed)
    if names:
        group.join(*names)
    else:
        group.join_many(members)
    group.run(rest)
    return group


#: The strategies whose groups become even.
EVEN = sorted(DECLARATIONS)


def assert_balanced(group: Members, limits: Mapping[str, int | None] | None = None) -> None:
    """The running members own all partitions, as evenly as their limits allow."""
    counts = group.counts()
    assert list(counts.values()) == fair_counts(counts, len(group.partitions), limits), "balanced"


def assert_stable(group: Members, cycles: int = 50) -> None:
    """Nothing moves in so many cycles, and no handover is pending."""
    layout = group.layout()
    group.cycles(cycles)
    assert group.layout() == layout
    assert not group.snapshot.ownership.pending


def is_balanced(group: Members) -> bool:
    """Whether the running members own everything, and none owns two more than another."""
    counts = group.counts().values()
    return sum(counts) == len(group.partitions) and max(counts) - min(counts) <= 1


def moves_of_a_cycle(group: Members) -> list[Move]:
    """What moves in a cycle of all members, one after the other."""
    group.moves = []
    group.cycles(1, racing=False)
    return group.moves


def settle(group: Members, within: int, *, late: float = 0.0) -> None:
    """Let cycles pass until one of a group whose members know each other moves nothing, and nothing is left to expire;
    at most `within`."""
    group.cycles(1)  # ends what is late
    for _ in range(within):
        before, known = group.layout(), group.snapshot.members.keys()
        group.cycles(1, late=late)
        gone = {owner for owner, _ in before.values()} - {None, *group.nodes}
        if group.layout() == before and not gone and group.nodes.keys() <= known:
            return
    raise AssertionError(f"still moving after {within} cycles: {group.counts()}")


def run_until(group: Members, seconds: float, condition: Callable[[], bool]) -> None:
    """Let time pass until `condition` holds, which must be within `seconds`."""
    until = group.now + seconds
    while not condition():
        assert group.now < until, (
            f"not within {seconds:g} s: {group.counts()}; docs/strategies.md says what a strategy may declare instead"
        )
        group.run(1.0)


def assert_at_rest(group: Members, seconds: float = 300.0) -> None:
    """Once the moves under way have ended nothing moves, and the group stays balanced."""
    group.run(30.0)
    layout = group.layout()
    group.run(seconds)
    assert group.layout() == layout
    assert is_balanced(group)
    assert not group.snapshot.ownership.pending
