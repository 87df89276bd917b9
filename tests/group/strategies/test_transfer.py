"""The transfer shedder: only the leader moves load, after it has been uneven for long enough, and not too often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import pstdev
from typing import Any

from spark_ehbalance.group.changes import Claim, RequestHandover, apply
from spark_ehbalance.group.model import Lease, Load
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import Decision
from tests.group.strategies.members import CYCLE, LEASE, layout_of, snapshot_of
from tests.group.strategies.views import Observer, heartbeats

HITS, COOL_DOWN, TARGET, LOAD_TIME_TO_LIVE = 3, 180.0, 0.25, 1800.0


class Decider(Observer):
    """A member that decides with `transfer` every ten seconds. Ann, the oldest in most of these groups, leads."""

    def __init__(self, me: str = "ann", **parameters: Any) -> None:
        super().__init__("transfer", me, parameters)

    def decide(self, snapshot: Snapshot, *, passed: float = CYCLE, **view: Any) -> Decision:
        return self.decide_at(self.now + passed, snapshot, **view)

    def lead(
        self, snapshot: Snapshot, cycles: int, *, silent: Iterable[str] = (), **view: Any
    ) -> tuple[list[Decision], Snapshot]:
        """Run `cycles` in which all members except `silent` send heartbeats and no decision is carried out."""
        decisions = []
        for _ in range(cycles):
            snapshot = heartbeats(snapshot, *silent)
            decisions.append(self.decide(snapshot, **view))
        return decisions, snapshot


def leader_moves(snapshot: Snapshot, cycles: int, **parameters: Any) -> list[tuple[str, str]]:
    """(partition, destination) of every move that the oldest member orders within this number of cycles."""
    return moves(Decider(next(iter(snapshot.members)), **parameters).lead(snapshot, cycles)[0])


def loaded(rates: Mapping[str, Iterable[float]]) -> Snapshot:
    """Members, oldest first, whose partitions have these loads."""
    leases = [
        Lease("", owner=name, epoch=1, checkpoint=Position(-1), load=Load(rate, 0.0))
        for name, member_rates in rates.items()
        for rate in member_rates
    ]
    return snapshot_of(list(rates), [replace(lease, partition=str(p)) for p, lease in enumerate(leases)])


def moves(decisions: Iterable[Decision]) -> list[tuple[str, str]]:
    return [
        (e.partition, e.to) for decision in decisions for e in decision.transitions if isinstance(e, RequestHandover)
    ]


# --- triggers --------------------------------------------------------------------------------------------------


def test_only_the_leader_moves_and_names_the_destination() -> None:
    snapshot = loaded({"ann": [100.0] * 2, "bob": [100.0] * 6})
    decisions, _ = Decider("bob").lead(snapshot, 20)
    assert not moves(decisions)
    assert {to for _, to in leader_moves(snapshot, 20)} == {"ann"}
    third = loaded({"ann": [100.0] * 4, "bob": [100.0] * 7, "cat": [100.0]})
    assert {to for _, to in leader_moves(third, 6)} == {"cat"}, "which has not requested it"


def test_leader_acts_after_hit_count_cycles_and_cools_down() -> None:
    decisions, _ = Decider().lead(loaded({"ann": [100.0] * 2, "bob": [100.0] * 6}), 45)
    acted = [number for number, decision in enumerate(decisions) if decision.transitions]
    # One cycle to read the others, three hits, the fourth acts; then the cool-down and four more cycles.
    assert acted[0] == 1 + HITS
    assert acted[1] - acted[0] == COOL_DOWN / CYCLE + HITS


def test_nothing_moves_within_the_target() -> None:
    assert not leader_moves(loaded({"ann": [100.0] * 4, "bob": [100.0] * 5, "cat": [100.0] * 6}), 20)
    assert leader_moves(loaded({"ann": [100.0] * 4, "bob": [100.0] * 6}), 20, target=0.1)


def test_idle_member_triggers_moves() -> None:
    names = [f"m{number}" for number in range(30)]
    snapshot = loaded({**{name: [100.0] * 2 for name in names}, "idle": []})
    loads = [2.0] * 30 + [0.0]
    assert pstdev(load / (60 / 31) for load in loads) < TARGET
    assert [to for _, to in leader_moves(snapshot, 6)] == ["idle"]


def test_members_keep_their_only_partition() -> None:
    assert not leader_moves(loaded({"ann": [1000.0], "bob": [], "cat": [10.0]}), 20)
    assert "nothing can be moved" in Decider().lead(loaded({"ann": [1000.0], "bob": [10.0]}), 9)[0][-1].reason


def test_maximum_sources_limits_the_shedding_members_per_cycle() -> None:
    rich = {f"rich{number}": [100.0] * 8 for number in range(6)}
    poor = {f"poor{number}": [100.0] for number in range(6)}
    snapshot = loaded({**rich, **poor})
    assert len({snapshot.leases[p].owner for p, _ in leader_moves(snapshot, 6)}) == 3


def test_moved_partitions_stay_for_the_minimum_tenure() -> None:
    ann, snapshot = Decider(cool_down=1.0, hit_count=0), loaded({"ann": [900.0, 100.0, 100.0], "bob": [100.0]})
    moved, now = [], snapshot
    for _ in range(8):
        now = heartbeats(now)
        decision = ann.decide(now, recently_moved=frozenset(now.leases))
        moved += moves([decision])
        now = apply(now, decision.transitions).after
        leases = {p: replace(e, owner=e.handover.to, handover=None) if e.handover else e for p, e in now.leases.items()}
        # The load moves with its partition, so the group is as uneven as before.
        busy = {p: replace(e, load=Load(900.0 if e.owner == "bob" else 100.0, 0.0)) for p, e in leases.items()}
        now = replace(now, leases=busy)
    assert len(moved) == len({partition for partition, _ in moved})


# --- the measure -----------------------------------------------------------------------------------------------


def test_member_with_an_outdated_load_is_neither_source_nor_destination() -> None:
    snapshot = loaded({"ann": [100.0] * 4, "bob": [100.0] * 8, "cat": []})
    ann = Decider()
    first, later = ann.lead(snapshot, 3)
    assert not moves([*first, *ann.lead(later, 9, silent=["bob", "cat"], passed=LOAD_TIME_TO_LIVE)[0]])
    assert moves(Decider().lead(snapshot, 12)[0])


# --- silence, free partitions ------------------------------------------------------------------------


def test_new_leader_waits_until_all_members_have_reported() -> None:
    ann, snapshot = Decider(), loaded({"ann": [100.0], "bob": [100.0] * 9, "cat": [100.0]})
    decisions, snapshot = ann.lead(snapshot, 20, silent=["cat"])
    assert not moves(decisions)
    assert "have not reported" in decisions[-1].reason
    assert moves(ann.lead(heartbeats(snapshot), 6)[0])


def test_leader_waits_for_reports_after_an_outage() -> None:
    ann, snapshot = Decider(), loaded({"ann": [100.0], "bob": [100.0] * 9})
    _, snapshot = ann.lead(snapshot, 3)
    decision = ann.decide(snapshot, passed=10 * LEASE)
    assert "have not reported" in decision.reason
    for _ in range(10):
        decision = ann.decide(snapshot)
    assert not decision.transitions
    assert moves(ann.lead(snapshot, 6)[0])


def test_least_loaded_members_claim_free_partitions_without_the_leader() -> None:
    leases = layout_of(["ann"] * 3 + ["bob"] + [None] * 5)
    snapshot = snapshot_of(["ann", "bob", "cat"], leases)
    claims = {name: Decider(name).decide(snapshot).transitions for name in snapshot.members}
    assert {name: len(claim) for name, claim in claims.items()} == {"ann": 0, "bob": 2, "cat": 3}
    assert (
        len({output.partition for outputs in claims.values() for output in outputs if isinstance(output, Claim)}) == 5
    )
