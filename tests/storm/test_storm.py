"""A few seeds of the storm; `make storm` plays many. Faults put into the engines by hand are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.changes import Checkpoint, LeaseTransition
from spark_ehbalance.group.member import engine as member_engine
from spark_ehbalance.group.member.membership import Holding, Membership
from spark_ehbalance.group.member.pending import pending
from spark_ehbalance.query import positions, replay
from spark_ehbalance.query.offsets import LoggedBatch
from spark_ehbalance.query.positions import _progress
from storm.plan import KINDS, draw
from storm.shrink import shrink
from storm.world import World, play


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_violates_nothing(seed: int) -> None:
    result = play(draw(seed))
    assert result.violation is None, "\n".join(result.story)
    assert result.met.total() > 20


def test_the_same_seed_makes_the_same_run() -> None:
    stories = []
    for _ in range(2):
        world = World(draw(1))
        world.run()
        stories.append(list(world.story))
    assert stories[0] == stories[1]


def test_each_kind_of_fault_can_happen() -> None:
    assert [kind for kind in KINDS if not hasattr(World, f"_{kind}")] == []


def first_violation(seeds: Sequence[int]) -> str:
    """The name of the first violated invariant."""
    for seed in seeds:
        if violation := play(draw(seed)).violation:
            return violation.name
    return ""


def test_a_member_that_plans_with_expired_leases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: Membership, holdings: Mapping[str, Holding], now: float) -> Mapping[str, Holding]:
        return holdings

    monkeypatch.setattr(Membership, "valid", all_of_them)
    assert first_violation([1]) == "two planners"


def test_a_handover_during_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(member: Any, query: Any, in_flight: Any, now: Any, *, leaving: bool) -> Any:
        return pending(member, query, frozenset(), now, leaving=leaving)

    monkeypatch.setattr(member_engine, "pending", at_once)
    assert first_violation([3]) == "planned move"


def test_progress_of_a_batch_that_others_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(logged: Range, holding: Holding) -> bool:
        return True

    monkeypatch.setattr(replay, "_owned_without_break", always)
    assert first_violation([8]) == "skipped"


def test_positions_of_cut_off_batches_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe_spark(log: Sequence[LoggedBatch], *, shared: bool) -> Any:
        return _progress(log, shared=False)

    monkeypatch.setattr(positions, "_progress", believe_spark)
    assert first_violation(range(20)) == "skipped"


def test_a_checkpoint_of_an_earlier_owner_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = LeaseTransition.refusal

    def unless_checkpoint(self: LeaseTransition, state: Any) -> str | None:
        return None if isinstance(self, Checkpoint) and self.partition in state.leases else refusal(self, state)

    monkeypatch.setattr(LeaseTransition, "refusal", unless_checkpoint)
    plan = draw(0)
    fewest, result = shrink(plan, play(plan))
    assert result.violation is not None
    assert result.violation.name == "fenced"
    assert len(fewest.faults) < len(plan.faults) / 5
