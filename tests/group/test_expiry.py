"""Observations of a random table, whose members have different lease durations, equal those of a plain definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest

from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.expiry import CLOCK_SKEW_ALLOWANCE, Observations
from spark_ehbalance.group.model import Handover, Lease, Member
from spark_ehbalance.group.snapshot import Snapshot
from tests.group.test_transitions_stateful import DURATION, Plain, compare_observed
from tests.lease_table.store_conformance import GROUP

_Row = TypeVar("_Row")

#: Times at which rows were renewed by the wall clock: at the limits of the skew allowance for two lease durations.
RENEWED_MS = [-round(1000 * (CLOCK_SKEW_ALLOWANCE + duration)) + more for duration in (30, 60) for more in (-1, 0, 1)]


def changed_lease(rng: random.Random, lease: Lease) -> Lease:
    renewed = replace(lease, renewal=rng.randrange(3), renewed_at_ms=rng.choice(RENEWED_MS))
    return rng.choice(
        [
            renewed,
            replace(renewed, epoch=rng.randrange(3), owner=rng.choice(["a", "b", "gone", None]), handover=None),
            replace(lease, handover=Handover(rng.choice("ab"), 20_000, rng.randrange(2))),
            replace(lease, handover=None),
        ]
    )


def changed_member(rng: random.Random, member: Member) -> Member:
    incarnation = rng.choice([member.incarnation, "1", "2"])
    return replace(member, renewal=rng.randrange(3), incarnation=incarnation, renewed_at_ms=rng.choice(RENEWED_MS))


def changed_row(
    rng: random.Random, rows: Mapping[str, _Row], change: Callable[[random.Random, _Row], _Row]
) -> Mapping[str, _Row]:
    key = rng.choice([*rows])
    return {**rows, key: change(rng, rows[key])}


@pytest.mark.parametrize("seed", range(60))
def test_observations_equal_a_plain_definition(seed: int) -> None:
    rng, now = random.Random(seed), 100.0
    leases = {p: Lease(p, "a", 1, renewed_at_ms=rng.choice(RENEWED_MS)) for p in "012"}
    members = {id: Member(id, "1", 1, renewed_at_ms=rng.choice(RENEWED_MS)) for id in "ab"}
    snapshot = Snapshot(GROUP, leases=leases, members=members)
    by_member = {"a": rng.choice([30.0, 60.0]), "b": 60.0}
    durations = Durations(by_member, min(by_member.values()), 60.0, DURATION, needs=rng.choice([0.0, 40.0]))
    observations, plain = Observations(), Plain()
    for _ in range(30):
        observations = observations.updated(snapshot, now)
        plain.look(snapshot, now)
        compare_observed(observations, plain, snapshot, durations, now, wall_ms=0)
        now += rng.choice([0, 8, 10, 20, 30])
        if rng.random() < 0.5:
            snapshot = replace(snapshot, leases=changed_row(rng, snapshot.leases, changed_lease))
        if rng.random() < 0.3:
            snapshot = replace(snapshot, members=changed_row(rng, snapshot.members, changed_member))
        if rng.random() < 0.1:
            snapshot = replace(snapshot, members={id: row for id, row in snapshot.members.items() if id != "b"})
        if rng.random() < 0.1:
            added = str(len(snapshot.leases))
            snapshot = replace(snapshot, leases={**snapshot.leases, added: Lease(added)})


def test_recreated_table_restarts_all_observations() -> None:
    before = Snapshot(GROUP, leases={p: Lease(p, "a", 1) for p in "01"})
    after = replace(before, leases={"0": before.leases["0"], "2": Lease("2", "a", 1)})
    observations = Observations().updated(before, 0.0).updated(after, 10.0)
    assert {p: seen.since for p, seen in observations.leases.items()} == {"0": 10.0, "2": 10.0}
