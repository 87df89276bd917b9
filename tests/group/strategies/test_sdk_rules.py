"""Without limits and pins, `balanced`, `greedy` and `eph` decide like the SDKs' processors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Steal
from spark_ehbalance.group.strategies import STRATEGIES, View
from spark_ehbalance.group.strategies.distribution import Distribution
from tests.group.strategies.groups import MANY, seeds
from tests.group.strategies.members import layout_of, snapshot_of
from tests.group.strategies.views import view_of


def sdk_next(distribution: Distribution, view: View) -> str | None:
    """Decide like `EventProcessorClient`."""
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
    chosen = sdk_next(Distribution.from_view(view), view)
    return [] if chosen is None else [chosen]


def sdk_greedy(view: View) -> list[str]:
    distribution, taken = Distribution.from_view(view), []
    while (chosen := sdk_next(distribution, view)) is not None:
        taken.append(chosen)
        distribution.move(chosen, view.me.id)
    return taken


def sdk_eph(view: View) -> list[str]:
    """Decide like `PartitionManager`, but with a share that is rounded up."""
    distribution = Distribution.from_view(view)
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
@MANY
@given(
    owners=st.lists(st.none() | st.sampled_from("abcdefg"), max_size=40),
    expired=st.sets(st.integers(0, 39).map(str)),
    limit=st.none() | st.integers(40, 50),
    seed=seeds,
)
def test_decisions_without_limits_equal_the_sdks(
    strategy: str, rule: object, owners: list[str | None], expired: set[str], limit: int | None, seed: int
) -> None:
    snapshot = snapshot_of(dict.fromkeys("abcdefg", limit), layout_of(owners))
    gone = frozenset(p for p in expired & snapshot.leases.keys() if snapshot.leases[p].owner not in (None, "a"))

    def view() -> View:
        return view_of(snapshot, "a", expired=gone, max_owned=limit, seed=seed)

    decision = STRATEGIES[strategy](view())
    assert [transition.partition for transition in decision.transitions] == rule(view())  # type: ignore[attr-defined,operator]


def test_one_owners_pins_do_not_unbalance_the_others() -> None:
    snapshot = snapshot_of("abc", layout_of("aaaaabb"))
    (steal,) = STRATEGIES["balanced"](view_of(snapshot, "c", pinned="01234")).transitions
    assert isinstance(steal, Steal)
    assert steal.partition in "56"
