"""The cache of a snapshot: what it computes once, and what it forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spark_ehbalance.leases.derived import Identity, Results
from spark_ehbalance.leases.model import Author, Lease, Load
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Claim, Heartbeat, Join, Renew, Transition, apply
from spark_ehbalance.values.position import Position
from tests.stores.store_conformance import GROUP

ANN = Author("ann", "1")
FREE = replace(Snapshot(GROUP), leases={"0": Lease("0", checkpoint=Position(-1))})
CLAIM = Claim(by=ANN, at_ms=0, partition="0", epoch=0)


def counted() -> tuple[list[None], Callable[[], int]]:
    """A list that grows with each call of the function, and the function."""
    calls: list[None] = []

    def compute() -> int:
        calls.append(None)
        return len(calls)

    return calls, compute


def after(snapshot: Snapshot, *transitions: Transition) -> Snapshot:
    outcome = apply(snapshot, transitions)
    assert not outcome.refused
    return outcome.after


def test_a_result_is_computed_once_per_name_and_key() -> None:
    results, (calls, compute) = Results(), counted()
    for name, key in (("a", 1), ("a", 2), ("b", 1)):
        assert results.get(name, compute, key) == results.get(name, compute, key)
    assert len(calls) == 3


def test_the_oldest_results_of_a_name_are_dropped() -> None:
    results, (calls, compute) = Results(), counted()
    for key in range(100):
        results.get("a", compute, key)
    results.get("a", compute, 99)
    assert len(calls) == 100, "the newest is kept"
    results.get("a", compute, 0)
    assert len(calls) == 101, "the oldest is not"


def test_an_identity_equals_only_that_of_the_same_object() -> None:
    one, equal = ("0", "1"), tuple("01")
    assert Identity(one) == Identity(one)
    assert Identity(one) != Identity(equal)
    assert {Identity(one): "found"}[Identity(one)] == "found"


def test_results_live_until_what_they_depend_on_changes() -> None:
    joined = after(FREE, Join(by=ANN, at_ms=0))
    owned = after(joined, CLAIM)
    assert owned.derived.by_ownership is not joined.derived.by_ownership
    beat = after(owned, Heartbeat(by=ANN, at_ms=1), Renew(by=ANN, at_ms=1, partition="0", epoch=1))
    assert beat.derived.by_ownership is owned.derived.by_ownership
    assert beat.load_version is owned.load_version
    loaded = after(beat, Renew(by=ANN, at_ms=2, partition="0", epoch=1, load=Load(1.0, 0.0)))
    assert loaded.derived.by_ownership is beat.derived.by_ownership
    assert loaded.load_version is not beat.load_version


def test_the_cache_is_no_part_of_the_value() -> None:
    used, unused = replace(FREE), replace(FREE)
    assert (used.ownership.owned, used.leader) == ({None: ("0",)}, None)
    assert used == unused
    assert repr(used) == repr(unused)
