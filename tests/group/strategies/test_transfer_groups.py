"""Groups with skewed loads under the transfer shedder."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import pstdev

from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.model import Load
from spark_ehbalance.group.strategies.transfer import TransferParameters
from tests.group.strategies.groups import FEW, run_until, seeds
from tests.group.strategies.members import CYCLE, Members

DEFAULTS = TransferParameters()

#: Seconds between two actions of the leader.
TURN = DEFAULTS.cool_down + (DEFAULTS.hit_count + 3) * CYCLE


def improvements(group: Members, rates: Mapping[str, float]) -> list[tuple[str, str]]:
    """Possible moves of a member's heaviest partitions to the least loaded member that would reduce the larger load of
    the two."""
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


@FEW
@given(
    members=st.integers(2, 6),
    rates=st.lists(st.floats(1, 1000), min_size=2, max_size=30),
    seed=seeds,
)
def test_skewed_loads_settle_within_the_target_or_without_possible_moves(
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
