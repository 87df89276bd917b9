"""Groups under the transfer shedder: without loads, through joins and crashes, and with skewed loads."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import pstdev

from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.model import Load
from spark_ehbalance.group.strategies.transfer import TransferParameters
from tests.group.strategies.groups import FEW, SOME, assert_at_rest, groups, is_balanced, run_until, seeds
from tests.group.strategies.members import CYCLE, LEASE, Members

DEFAULTS = TransferParameters()

#: What the leader needs to act once, and again.
TURN = DEFAULTS.cool_down + (DEFAULTS.hit_count + 3) * CYCLE


@FEW
@given(group=groups("transfer", 8, 48))
def test_any_layout_without_loads_comes_to_a_balanced_rest(group: Members) -> None:
    run_until(group, 8 * TURN, lambda: is_balanced(group))
    assert_at_rest(group, 2 * TURN)


@FEW
@given(data=st.data(), group=groups("transfer", 6, 32))
def test_through_joins_leaves_and_crashes(data: st.DataObject, group: Members) -> None:
    group.run(2 * TURN)
    for _ in range(3):
        match data.draw(st.sampled_from(["join", "leave", "crash"])):
            case "leave" if len(group.nodes) > 1:
                group.leave(data.draw(st.sampled_from(sorted(group.nodes))))
            case "crash" if len(group.nodes) > 1:
                group.crash(data.draw(st.sampled_from(sorted(group.nodes))))
            case _:
                group.join_many(data.draw(st.integers(1, 3)))
        run_until(group, LEASE + 3 * CYCLE, lambda: sum(group.counts().values()) == len(group.partitions))
    run_until(group, 8 * TURN, lambda: is_balanced(group))
    assert_at_rest(group, 2 * TURN)


def improvements(group: Members, rates: Mapping[str, float]) -> list[tuple[str, str]]:
    """What could go from anybody to the least loaded member and would make the larger of the two smaller, of the
    heaviest partitions that come into question."""
    owned = {name: [lease.partition for lease in group.snapshot.owned_by(name)] for name in group.nodes}
    loads = {name: sum(rates[p] for p in partitions) for name, partitions in owned.items()}
    least = min(loads, key=lambda name: loads[name])
    return [
        (partition, least)
        for name, partitions in owned.items()
        if len(partitions) > 1
        for partition in sorted(partitions, key=lambda p: -rates[p])[:10]
        if rates[partition] < 0.999 * (loads[name] - loads[least])
    ]


@SOME
@given(
    members=st.integers(2, 6),
    rates=st.lists(st.floats(1, 1000), min_size=2, max_size=30),
    seed=seeds,
)
def test_skewed_loads_end_within_the_target_or_where_nothing_can_be_moved(
    members: int, rates: list[float], seed: int
) -> None:
    by_partition = {str(p): rate for p, rate in enumerate(rates)}
    group = Members(len(rates), seed=seed, strategy="transfer")
    group.loads = lambda: {p: Load(rate, 0.0) for p, rate in by_partition.items()}
    group.join_many(members)

    def deviation() -> float:
        loads = [sum(by_partition[e.partition] for e in group.snapshot.owned_by(name)) for name in group.nodes]
        return pstdev(loads) * len(loads) / sum(loads)

    def at_rest() -> bool:
        return deviation() <= DEFAULTS.target or not improvements(group, by_partition)

    group.run(TURN)
    run_until(group, 12 * TURN, at_rest)
    group.run(30.0)
    if deviation() <= DEFAULTS.target and all(group.counts().values()):
        layout = group.layout()
        group.run(2 * TURN)
        assert group.layout() == layout
