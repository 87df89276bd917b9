"""`maxPartitionsOwned`: nobody has more, and nothing is unread that somebody has room for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Claim
from spark_ehbalance.group.expiry import Observations
from spark_ehbalance.group.model import Handover, Lease
from spark_ehbalance.group.orders import PinTo
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import STRATEGIES, View
from spark_ehbalance.group.strategies.base import Decision
from spark_ehbalance.group.strategies.distribution import Distribution
from spark_ehbalance.simulation.ideal import fair_counts
from tests.group.strategies.groups import EVEN, FEW, run_until, seeds
from tests.group.strategies.members import CYCLE, OPERATOR, Members, layout_of, snapshot_of
from tests.group.strategies.rules import DECIDED, NOTICED, Rules
from tests.group.strategies.views import view_of

EACH = pytest.mark.parametrize("strategy", EVEN)

limits = st.lists(st.none() | st.integers(0, 8), min_size=1, max_size=6)


def shared_group(strategy: str, partitions: int, limits: Sequence[int | None], seed: int = 1) -> Members:
    """Members that start one after the other, as soon as all is shared: as evenly as the limits allow, and all as far
    as they do."""
    group = Members(partitions, seed=seed, strategy=strategy)
    Rules(group)
    for limit in limits:
        group.join(max_owned=limit)
        group.run(CYCLE)
    by_name = dict(zip(group.nodes, limits, strict=True))
    run_until(group, 3600, lambda: group.counts() == fair(group.counts(), partitions, by_name))
    return group


def fair(counts: Mapping[str, int], partitions: int, limits: Mapping[str, int | None]) -> dict[str, int]:
    """The fair layout that is nearest."""
    return dict(zip(counts, fair_counts(counts, partitions, limits), strict=True))


@EACH
@FEW
@given(count=st.integers(1, 24), limits=limits, seed=seeds)
def test_a_group_shares_as_evenly_as_its_limits_allow_and_comes_to_rest(
    strategy: str, count: int, limits: list[int | None], seed: int
) -> None:
    group = shared_group(strategy, count, limits, seed)
    group.run(DECIDED)
    layout = group.layout()
    group.run(10 * CYCLE)
    assert group.layout() == layout
    assert not group.snapshot.ownership.pending


@settings(FEW, max_examples=12)
@given(strategy=st.sampled_from(EVEN), count=st.integers(2, 16), limits=limits, data=st.data(), seed=seeds)
def test_pins_are_followed_as_far_as_limits_allow_and_leave_nothing_unread(
    strategy: str, count: int, limits: list[int | None], data: st.DataObject, seed: int
) -> None:
    """All that is pinned is pinned before anybody has begun, or when all is shared."""
    group = Members(count, seed=seed, strategy=strategy)
    rules = Rules(group)
    names = [f"member-{number}" for number in range(len(limits))]
    for limit in limits:
        group.join(max_owned=limit)
    group.run(data.draw(st.sampled_from([0.5, NOTICED + count * DECIDED])))
    pins = data.draw(st.dictionaries(st.sampled_from(group.partitions), st.sampled_from(names), min_size=1))
    for partition, to in pins.items():
        order = PinTo(by=OPERATOR, at_ms=0, partition=partition, to=to, timeout_ms=30_000)
        group.order_if_valid(order)
    for _ in range(60):
        group.run(CYCLE)
        rules.look()
    counts, leases = group.counts(), group.snapshot.leases
    room = sum(count if limit is None else limit for limit in limits)
    assert sum(counts.values()) == min(count, room)
    for partition, to in pins.items():
        if leases[partition].pin is not None and leases[partition].owner != to:
            assert counts[to] == limits[names.index(to)], f"{to} has room for {partition}"


@EACH
def test_a_member_that_comes_back_with_a_smaller_limit_gets_no_more_than_that(strategy: str) -> None:
    """It was promised partitions by its old limit; they stay with whoever reads them."""
    group = Members(9, strategy=strategy)
    Rules(group)
    group.join("ann", "bob")
    group.run(NOTICED + 9 * DECIDED)
    theirs = [lease.partition for lease in group.snapshot.owned_by("bob")]
    group.begin_batch("bob", 20)
    for partition in theirs:
        group.order(PinTo(by=OPERATOR, at_ms=0, partition=partition, to="ann", timeout_ms=30_000))
    group.crash("ann")
    group.join("ann", max_owned=2)
    group.run(1)
    assert not [p for p, to in group.snapshot.ownership.pending.items() if to.to == "ann"]
    group.run(NOTICED + 9 * DECIDED)
    assert group.counts() == {"ann": 2, "bob": 7}


# --- without limits the rules are those of the SDKs --------------------------------------------------------------


def sdk_next(distribution: Distribution, view: View) -> str | None:
    """As `EventProcessorClient` decides."""
    own = len(distribution.owned[view.me.id])
    floor, remainder = divmod(distribution.total, len(distribution.owned))
    others = {owner: theirs for owner, theirs in distribution.owned.items() if owner != view.me.id}
    with_extra = sum(len(theirs) > floor for theirs in others.values()) if remainder else 0
    if own >= (floor + 1 if with_extra < remainder else floor):
        return None
    if distribution.unclaimed:
        return view.rng.choice(distribution.unclaimed)
    for most in [floor + 1] * bool(remainder) + [floor] * (own < floor):
        if able := [p for theirs in others.values() if len(theirs) > most for p in theirs]:
            return view.rng.choice(able)
    return None


def sdk_balanced(view: View) -> list[str]:
    chosen = sdk_next(Distribution.of(view), view)
    return [] if chosen is None else [chosen]


def sdk_greedy(view: View) -> list[str]:
    distribution, taken = Distribution.of(view), []
    while (chosen := sdk_next(distribution, view)) is not None:
        taken.append(chosen)
        distribution.move(chosen, view.me.id)
    return taken


def sdk_eph(view: View) -> list[str]:
    """As `PartitionManager` does, with a share that is rounded up."""
    distribution = Distribution.of(view)
    own, counts = (
        len(distribution.owned[view.me.id]),
        {owner: len(theirs) for owner, theirs in distribution.owned.items()},
    )
    missing = math.ceil(distribution.total / len(counts)) - own
    if missing > 0 and distribution.unclaimed:
        return view.rng.sample(distribution.unclaimed, min(missing, len(distribution.unclaimed)))
    most = max(counts.values())
    if most - own < 2:
        return []
    biggest = view.rng.choice([owner for owner, count in counts.items() if count == most])
    return [view.rng.choice(list(distribution.owned[biggest]))]


@pytest.mark.parametrize(("strategy", "rule"), [("balanced", sdk_balanced), ("greedy", sdk_greedy), ("eph", sdk_eph)])
@settings(max_examples=100, deadline=None)
@given(
    owners=st.lists(st.none() | st.sampled_from("abcdefg"), max_size=40),
    expired=st.sets(st.integers(0, 39).map(str)),
    limit=st.none() | st.integers(40, 50),
    seed=seeds,
)
def test_without_a_limit_in_reach_every_decision_is_the_sdks(
    strategy: str, rule: object, owners: list[str | None], expired: set[str], limit: int | None, seed: int
) -> None:
    snapshot = snapshot_of(dict.fromkeys("abcdefg", limit), layout_of(owners))
    gone = frozenset(p for p in expired & snapshot.leases.keys() if snapshot.leases[p].owner not in (None, "a"))

    def view() -> View:
        return view_of(snapshot, "a", expired=gone, max_owned=limit, seed=seed)

    decision = STRATEGIES[strategy](view())
    assert [each.partition for each in decision.transitions] == rule(view())  # type: ignore[attr-defined,operator]


def test_the_others_share_by_the_same_rule_what_is_over_a_limit() -> None:
    """10 partitions, limits of 1, 4 and none: 1, 4, 5. The reason tells one's share."""
    snapshot = snapshot_of({"a": 1, "b": 4, "c": None}, layout_of("abbbbcccc"))
    snapshot = replace(snapshot, leases={**snapshot.leases, "9": Lease("9", checkpoint=Position(-1))})

    def decide(strategy: str, me: str) -> Decision:
        return STRATEGIES[strategy](view_of(snapshot, me, max_owned=snapshot.members[me].max_owned))

    for strategy in ("balanced", "greedy", "eph"):
        for full in "ab":
            limit = snapshot.members[full].max_owned
            assert decide(strategy, full).reason == f"nothing, because maxPartitionsOwned={limit} is reached"
        (claim,) = decide(strategy, "c").transitions
        assert isinstance(claim, Claim)
        assert claim.partition == "9"
    assert decide("balanced", "c").reason == "claim, because 4 is below the share of 5"


def test_pending_handovers_to_a_member_count_against_its_limit() -> None:
    """A handover that is pending, of whatever strategy or operator."""
    owners = layout_of(["b", None])
    owners[0] = replace(owners[0], handover=Handover("a", 30_000))
    snapshot = snapshot_of({"a": 1, "b": None}, owners)
    view = view_of(snapshot, "a", max_owned=1, observations=Observations().updated(snapshot, 0.0))
    for strategy in STRATEGIES.values():
        assert not [each for each in strategy(view).transitions if isinstance(each, Claim)]
