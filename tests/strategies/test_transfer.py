"""The transfer shedder: the leader alone moves load, when it has been uneven for long enough, and not too often."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.leases.expiry import Observations
from spark_ehbalance.leases.model import Author, Lease, Load, MemberLoad, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import CancelHandover, Claim, Heartbeat, RequestHandover, apply
from spark_ehbalance.strategies import Decision, View, strategy
from spark_ehbalance.strategies.transfer import TransferParameters
from spark_ehbalance.values.position import Position
from tests.strategies.groups import FEW, SOME, assert_at_rest, groups, is_balanced, run_until, seeds
from tests.strategies.members import CYCLE, LEASE, Members, layout_of, snapshot_of

HITS, COOL_DOWN, STUCK, TARGET = 3, 180.0, 30.0, 0.25


class Observer:
    """One member that decides every ten seconds on snapshots as they are put before it."""

    def __init__(self, me: str, **parameters: Any) -> None:
        self.me = Author(me, "1")
        self.now = 0.0
        self._strategy = strategy("transfer", TransferParameters(**parameters))
        self._observations = Observations()
        self._memory: Any = None

    def decide(
        self, snapshot: Snapshot, *, passed: float = CYCLE, live: Iterable[str] | None = None, **view: Any
    ) -> Decision:
        self.now += passed
        self._observations = self._observations.updated(snapshot, self.now)
        decision = self._strategy(
            View(
                me=self.me,
                at_ms=0,
                snapshot=snapshot,
                expired=view.pop("expired", frozenset()),
                live=frozenset(snapshot.members if live is None else live),
                rng=random.Random(0),
                tenured=view.pop("tenured", frozenset(snapshot.leases)),
                now=self.now,
                observations=self._observations,
                memory=self._memory,
                **view,
            )
        )
        self._memory = decision.memory
        return decision

    def lead(self, snapshot: Snapshot, cycles: int) -> tuple[list[Decision], Snapshot]:
        """`cycles` in which everybody shows a sign of life and nothing is carried out."""
        decisions = []
        for _ in range(cycles):
            snapshot = heartbeats(snapshot)
            decisions.append(self.decide(snapshot))
        return decisions, snapshot


def heartbeats(snapshot: Snapshot, *but: str) -> Snapshot:
    alive = [Heartbeat(by=Author(id, "1"), at_ms=0) for id in snapshot.members if id not in but]
    return apply(snapshot, alive).after


def loaded(rates: Mapping[str, Iterable[float]], **cpus: float) -> Snapshot:
    """Members, oldest first, whose partitions have these loads."""
    leases = [
        Lease("", owner=name, epoch=1, checkpoint=Position(-1), load=Load(rate, 0.0))
        for name, each in rates.items()
        for rate in each
    ]
    snapshot = snapshot_of(list(rates), [replace(lease, partition=str(p)) for p, lease in enumerate(leases)])
    members = {id: replace(m, load=MemberLoad(0, 0, 1, cpus[id])) for id, m in snapshot.members.items() if id in cpus}
    return replace(snapshot, members={**snapshot.members, **members})


def moves(decisions: Iterable[Decision]) -> list[tuple[str, str]]:
    return [(e.partition, e.to) for each in decisions for e in each.transitions if isinstance(e, RequestHandover)]


# --- when ------------------------------------------------------------------------------------------------------


def test_only_the_leader_moves_and_names_the_destination() -> None:
    snapshot = loaded({"ann": [100.0] * 2, "bob": [100.0] * 6})
    decisions, _ = Observer("bob").lead(snapshot, 20)
    assert not moves(decisions)
    decisions, _ = Observer("ann").lead(snapshot, 20)
    assert {to for _, to in moves(decisions)} == {"ann"}
    third = loaded({"ann": [100.0] * 4, "bob": [100.0] * 7, "cat": [100.0]})
    decisions, _ = Observer("ann").lead(third, 6)
    assert {to for _, to in moves(decisions)} == {"cat"}, "which has not asked for it"


def test_it_acts_after_more_than_so_many_cycles_in_a_row_and_then_cools_down() -> None:
    decisions, _ = Observer("ann").lead(loaded({"ann": [100.0] * 2, "bob": [100.0] * 6}), 45)
    acted = [number for number, each in enumerate(decisions) if each.transitions]
    # One cycle to hear of the others, three hits, the fourth acts; again after the cool-down and four more.
    assert acted[0] == 1 + HITS
    assert acted[1] - acted[0] == COOL_DOWN / CYCLE + HITS


def test_a_balanced_cycle_begins_the_count_anew() -> None:
    ann, uneven = Observer("ann"), loaded({"ann": [100.0] * 2, "bob": [100.0] * 6})
    even = loaded({"ann": [100.0] * 4, "bob": [100.0] * 4})
    snapshot, decisions = uneven, []
    for number in range(30):
        snapshot = heartbeats(snapshot)
        now = snapshot if number % 4 else replace(even, members=snapshot.members)
        decisions.append(ann.decide(now))
    assert not moves(decisions)


def test_within_the_target_nothing_moves() -> None:
    decisions, _ = Observer("ann").lead(loaded({"ann": [100.0] * 4, "bob": [100.0] * 5, "cat": [100.0] * 6}), 20)
    assert not moves(decisions)
    decisions, _ = Observer("ann", target=0.1).lead(loaded({"ann": [100.0] * 4, "bob": [100.0] * 6}), 20)
    assert moves(decisions)


def test_an_idle_member_is_reason_enough() -> None:
    names = [f"m{number}" for number in range(30)]
    snapshot = loaded({**{name: [100.0] * 2 for name in names}, "idle": []})
    loads = [2.0] * 30 + [0.0]
    assert pstdev(load / (60 / 31) for load in loads) < TARGET
    decisions, _ = Observer("m0").lead(snapshot, 6)
    assert [to for _, to in moves(decisions)] == ["idle"]


def hosts(*busy: tuple[float, int]) -> Snapshot:
    """Members whose hosts are so busy, each with so many partitions that bring in as much as they cost."""
    names = [f"m{number:02}" for number in range(len(busy))]
    rates = {name: [10_000 * cpu / count] * count for name, (cpu, count) in zip(names, busy, strict=True)}
    return loaded(rates, **{name: cpu for name, (cpu, _) in zip(names, busy, strict=True)})


def routes(snapshot: Snapshot, decisions: Iterable[Decision]) -> set[tuple[str | None, str]]:
    return {(snapshot.leases[partition].owner, to) for partition, to in moves(decisions)}


@pytest.mark.parametrize("partitions", [2, 8])
def test_one_overloaded_member_among_a_hundred_is_reason_enough(partitions: int) -> None:
    snapshot = hosts(*[(0.01, partitions)] * 99, (1.0, partitions))
    assert pstdev([0.01] * 99 + [1.0]) < TARGET
    decisions, _ = Observer("m00").lead(snapshot, 1 + HITS)
    assert not moves(decisions), "not before it has been so for some cycles"
    decisions, _ = Observer("m00").lead(snapshot, 2 + HITS)
    assert {source for source, _ in routes(snapshot, decisions)} == {"m99"}
    assert "the most loaded has 1.00" in decisions[-1].reason
    # To others than it down to 85 %, and not further: a partition each, as one lifts any of them over the mean.
    assert len(moves(decisions)) == (1 if partitions == 2 else 2)


@pytest.mark.parametrize("partitions", [2, 8])
def test_one_underloaded_member_among_a_hundred_is_reason_enough(partitions: int) -> None:
    snapshot = hosts(*[(0.98, partitions)] * 98, (0.99, partitions), (0.01, partitions))
    assert pstdev([0.98] * 98 + [0.99, 0.01]) < TARGET
    decisions, _ = Observer("m00").lead(snapshot, 2 + HITS)
    assert routes(snapshot, decisions) == {("m98", "m99")}
    assert "the least loaded has but 0.01" in decisions[-1].reason


def test_one_underloaded_member_is_reason_enough_by_rates_as_well() -> None:
    snapshot = loaded({f"m{number:02}": [49.0] * 2 for number in range(99)} | {"m99": [0.5] * 2})
    decisions, _ = Observer("m00").lead(snapshot, 2 + HITS)
    assert {to for _, to in routes(snapshot, decisions)} == {"m99"}


@pytest.mark.parametrize(
    ("most", "mean", "acts"),
    [
        (0.85, 0.2, False),  # not over 85 %
        (0.86, 0.2, True),
        (0.99, 0.75, False),  # not over the mean by the target
        (0.99, 0.73, True),
    ],
)
def test_overloaded_is_who_is_nearly_full_and_over_the_mean_by_the_target(most: float, mean: float, acts: bool) -> None:
    snapshot = hosts(*[(mean - (most - mean) / 99, 4)] * 99, (most, 4))
    assert bool(moves(Observer("m00").lead(snapshot, 2 + HITS)[0])) is acts


@pytest.mark.parametrize(
    ("target", "least", "acts"),
    [
        (0.25, 0.11, False),  # an eighth of the others is where it begins
        (0.25, 0.09, True),
        (0.5, 0.21, False),
        (0.5, 0.19, True),
        (10.0, 0.45, False),  # never more than half of them
        (10.0, 0.35, True),
    ],
)
def test_underloaded_is_who_has_less_than_half_the_target_of_the_mean(target: float, least: float, acts: bool) -> None:
    mean = 0.8
    snapshot = hosts(*[(mean + (mean - least) / 99, 4)] * 99, (least, 4))
    assert bool(moves(Observer("m00", target=target).lead(snapshot, 2 + HITS)[0])) is acts


def test_who_reads_next_to_nothing_beside_the_most_loaded_is_underloaded_though_its_host_is_busy() -> None:
    snapshot = loaded(
        {f"m{number:02}": [500.0] * 8 for number in range(20)} | {"new": [1.0] * 8},
        **{f"m{number:02}": 0.5 for number in range(20)},
        new=0.2,
    )
    decisions, _ = Observer("m00").lead(snapshot, 2 + HITS)
    assert {to for _, to in routes(snapshot, decisions)} == {"new"}
    assert "the least loaded has but 0.20 and 8.0 events/s" in decisions[-1].reason


def test_nothing_is_moved_between_others_than_the_one_that_is_overloaded() -> None:
    # It has one partition, so that nothing can help it; the others are within the target.
    others = [(0.05, 4), (0.30, 4)] * 20
    decisions, _ = Observer("m00").lead(hosts(*others, (1.0, 1)), 20)
    assert not moves(decisions)
    assert "the most loaded has 1.00, but nothing can be moved" in decisions[-1].reason


def test_who_has_no_room_is_not_helped_and_the_others_are_left_alone() -> None:
    snapshot = hosts(*[(0.5, 4), (0.7, 4)] * 20, (0.01, 4))
    limited = replace(snapshot.members["m40"], max_owned=4)
    decisions, _ = Observer("m00").lead(replace(snapshot, members={**snapshot.members, "m40": limited}), 20)
    assert not moves(decisions)


def test_nobody_gives_its_only_partition() -> None:
    decisions, _ = Observer("ann").lead(loaded({"ann": [1000.0], "bob": [], "cat": [10.0]}), 20)
    assert not moves(decisions)
    assert "nothing can be moved" in Observer("ann").lead(loaded({"ann": [1000.0], "bob": [10.0]}), 9)[0][-1].reason


def test_half_the_difference_moves() -> None:
    decisions, _ = Observer("ann").lead(loaded({"ann": [100.0] * 9, "bob": [100.0]}), 6)
    assert [to for _, to in moves(decisions)] == ["bob"] * 4


def test_only_so_many_members_shed_in_one_cycle() -> None:
    rich = {f"rich{number}": [100.0] * 8 for number in range(6)}
    poor = {f"poor{number}": [100.0] for number in range(6)}
    snapshot = loaded({**rich, **poor})
    decisions, _ = Observer("rich0").lead(snapshot, 6)
    assert len({snapshot.leases[p].owner for p, _ in moves(decisions)}) == 3
    decisions, _ = Observer("rich0", maximum_sources=5).lead(snapshot, 6)
    assert len({snapshot.leases[p].owner for p, _ in moves(decisions)}) == 5


def test_only_the_top_partitions_come_into_question() -> None:
    rates = [10.0] * 20 + [500.0, 400.0]
    decisions, _ = Observer("ann", top_partitions=2).lead(loaded({"ann": rates, "bob": [10.0]}), 6)
    assert {p for p, _ in moves(decisions)} <= {"20", "21"}
    assert moves(decisions)


def test_what_is_pinned_stays() -> None:
    ann, snapshot = Observer("ann"), loaded({"ann": [100.0] * 9, "bob": [100.0]})
    decisions = []
    for _ in range(8):
        snapshot = heartbeats(snapshot)
        decisions.append(ann.decide(snapshot, pinned=frozenset(snapshot.leases) - {"3"}))
    assert moves(decisions) == [("3", "bob")]


def test_what_was_moved_stays_for_the_minimum_tenure() -> None:
    ann, snapshot = Observer("ann", cool_down=1.0, hit_count=0), loaded({"ann": [900.0, 100.0, 100.0], "bob": [100.0]})
    moved, now = [], snapshot
    for _ in range(8):
        now = heartbeats(now)
        decision = ann.decide(now, tenured=frozenset())
        moved += moves([decision])
        now = apply(now, decision.transitions).after
        leases = {p: replace(e, owner=e.handover.to, handover=None) if e.handover else e for p, e in now.leases.items()}
        # The load goes with whoever has it: everything looks as uneven as before.
        busy = {p: replace(e, load=Load(900.0 if e.owner == "bob" else 100.0, 0.0)) for p, e in leases.items()}
        now = replace(now, leases=busy)
    assert len(moved) == len({partition for partition, _ in moved})


# --- a dry run -------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_what_it_would_move_and_moves_nothing() -> None:
    snapshot = loaded({"ann": [100.0] * 9, "bob": [100.0]})
    real, _ = Observer("ann").lead(snapshot, 45)
    dry, _ = Observer("ann", dry_run=True).lead(snapshot, 45)
    assert not any(each.transitions for each in dry)
    assert [each.would for each in dry] == [tuple(moves([each])) for each in real]
    (first, _) = [each for each in dry if each.would]  # as often as they would be moved
    assert first.reason.startswith("would move 4 but for transfer.dryRun, because the standard deviation")


def test_a_dry_run_takes_what_is_free_and_clears_up_what_is_stuck() -> None:
    ann, bob = Observer("ann", dry_run=True), Observer("bob", dry_run=True)
    layout = layout_of(["ann"] * 4 + ["bob"] * 2 + [None] * 4)
    claims = [e for each in (ann, bob) for e in each.decide(snapshot_of(["ann", "bob"], layout)).transitions]
    assert {(type(each), each.partition) for each in claims if isinstance(each, Claim)} == {
        (Claim, partition) for partition in "6789"
    }
    request = RequestHandover(by=Author("ann", "1"), at_ms=0, partition="0", epoch=1, to="bob", timeout_ms=30_000)
    pending = apply(loaded({"ann": [100.0] * 3, "bob": [100.0] * 3}), [request]).after
    (claim,) = Observer("bob", dry_run=True).decide(pending, overdue=frozenset("0")).transitions
    assert isinstance(claim, Claim)
    ann.decide(pending)
    (cancel,) = ann.decide(pending, passed=2 * STUCK).transitions
    assert isinstance(cancel, CancelHandover)


# --- by what ---------------------------------------------------------------------------------------------------


def test_by_cores_where_every_member_tells_them() -> None:
    snapshot = loaded({"ann": [100.0] * 4, "bob": [100.0] * 4}, ann=0.95, bob=0.15)
    decisions, _ = Observer("ann").lead(snapshot, 6)
    assert {to for _, to in moves(decisions)} == {"bob"}
    assert 1 <= len(moves(decisions)) <= 2
    decisions, _ = Observer("ann").lead(loaded({"ann": [100.0] * 4, "bob": [100.0] * 4}, ann=0.95), 6)
    assert not moves(decisions), "one alone says nothing"


def test_a_member_whose_load_is_old_is_neither_source_nor_destination() -> None:
    snapshot = loaded({"ann": [100.0] * 4, "bob": [100.0] * 8, "cat": []})
    ann = Observer("ann", load_time_to_live=5.0)
    decisions = []
    for number in range(12):
        snapshot = heartbeats(snapshot, *(["bob", "cat"] if number > 2 else []))
        decisions.append(ann.decide(snapshot))
    assert not moves(decisions)
    fresh = Observer("ann").lead(loaded({"ann": [100.0] * 4, "bob": [100.0] * 8, "cat": []}), 12)[0]
    assert moves(fresh)


def test_a_member_whose_partitions_have_told_no_load_is_left_alone() -> None:
    snapshot = loaded({"ann": [100.0] * 4, "bob": [100.0] * 8, "cat": [100.0] * 4})
    untold = {p: replace(e, load=None) if e.owner == "bob" else e for p, e in snapshot.leases.items()}
    assert not moves(Observer("ann").lead(replace(snapshot, leases=untold), 12)[0])


def test_without_any_loads_partitions_are_counted() -> None:
    leases = layout_of(["ann"] * 7 + ["bob"] * 2)
    decisions, _ = Observer("ann").lead(snapshot_of(["ann", "bob", "cat"], leases), 6)
    assert sorted(to for _, to in moves(decisions)) == ["bob", "cat", "cat", "cat"]


# --- trouble ---------------------------------------------------------------------------------------------------


def test_a_new_leader_waits_until_all_have_reported() -> None:
    ann, snapshot = Observer("ann"), loaded({"ann": [100.0], "bob": [100.0] * 9, "cat": [100.0]})
    decisions = []
    for _ in range(20):
        snapshot = heartbeats(snapshot, "cat")
        decisions.append(ann.decide(snapshot))
    assert not moves(decisions)
    assert "have not reported" in decisions[-1].reason
    assert moves(ann.lead(heartbeats(snapshot), 6)[0])


def test_after_an_outage_the_leader_waits_for_reports_as_well() -> None:
    ann, snapshot = Observer("ann"), loaded({"ann": [100.0], "bob": [100.0] * 9})
    _, snapshot = ann.lead(snapshot, 3)
    decision = ann.decide(snapshot, passed=10 * LEASE)
    assert "have not reported" in decision.reason
    for _ in range(10):
        decision = ann.decide(snapshot)
    assert not decision.transitions
    assert moves(ann.lead(snapshot, 6)[0])


def test_a_stuck_move_is_the_destinations_to_force_and_then_the_leaders_to_call_off() -> None:
    ann, bob = Observer("ann"), Observer("bob")
    snapshot = loaded({"ann": [100.0] * 9, "bob": [100.0]})
    decisions, snapshot = ann.lead(snapshot, 5)
    (request, *_) = [each for each in decisions[-1].transitions if isinstance(each, RequestHandover)]
    assert request.timeout_ms == STUCK * 1000
    pending = apply(snapshot, [request]).after
    ann.decide(pending, passed=1.0)
    assert not ann.decide(pending, passed=STUCK).transitions
    overdue = frozenset({request.partition})
    (claim,) = bob.decide(pending, overdue=overdue).transitions
    assert isinstance(claim, Claim)
    assert not apply(pending, [claim]).refused
    (cancel,) = ann.decide(pending, passed=STUCK).transitions
    assert isinstance(cancel, CancelHandover)


@pytest.mark.parametrize("how", ["leaving", "dead"])
def test_a_move_to_somebody_who_is_gone_is_called_off_at_once(how: str) -> None:
    ann, snapshot = Observer("ann"), loaded({"ann": [100.0] * 3, "bob": [100.0] * 3, "cat": [100.0]})
    request = RequestHandover(by=ann.me, at_ms=0, partition="3", epoch=1, to="cat", timeout_ms=30_000)
    snapshot = apply(snapshot, [request]).after
    state = MemberState.LEAVING if how == "leaving" else MemberState.ACTIVE
    members = {**snapshot.members, "cat": replace(snapshot.members["cat"], state=state)}
    live = ["ann", "bob", "cat"] if how == "leaving" else ["ann", "bob"]
    (cancel,) = ann.decide(replace(snapshot, members=members), live=live).transitions
    assert isinstance(cancel, CancelHandover)


def test_free_partitions_are_taken_without_the_leader_by_those_who_have_least() -> None:
    leases = layout_of(["ann"] * 3 + ["bob"] + [None] * 5)
    snapshot = snapshot_of(["ann", "bob", "cat"], leases)
    claims = {name: Observer(name).decide(snapshot).transitions for name in snapshot.members}
    assert {name: len(each) for name, each in claims.items()} == {"ann": 0, "bob": 2, "cat": 3}
    assert len({each.partition for said in claims.values() for each in said if isinstance(each, Claim)}) == 5


# --- groups ----------------------------------------------------------------------------------------------------

#: What the leader needs to act once, and again.
TURN = COOL_DOWN + (HITS + 3) * CYCLE


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
        return deviation() <= TARGET or not improvements(group, by_partition)

    group.run(TURN)
    run_until(group, 12 * TURN, at_rest)
    group.run(30.0)
    if deviation() <= TARGET and all(group.counts().values()):
        layout = group.layout()
        group.run(2 * TURN)
        assert group.layout() == layout
