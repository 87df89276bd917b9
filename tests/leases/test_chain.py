"""What is carried over from version to version equals what is computed from each version alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.leases.expiry import (
    CLOCK_SKEW_ALLOWANCE,
    Observations,
    expired_leases,
    expired_members,
    overdue_handovers,
    tenured_leases,
)
from spark_ehbalance.leases.last_changed import LastChanged
from spark_ehbalance.leases.model import Author, Handover, Lease, Load, Member, MemberState
from spark_ehbalance.leases.ownership import Ownership
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    CancelHandover,
    Checkpoint,
    Claim,
    Drain,
    HandOver,
    Heartbeat,
    Join,
    Leave,
    Release,
    Renew,
    RequestHandover,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.values.position import Position
from tests.stores.store_conformance import GROUP

AUTHORS = [Author(name, f"{name}-{number}") for name in ("ann", "bob") for number in (1, 2)]
PARTITIONS = ["0", "1", "2"]
DURATION, TENURE = 30.0, 100.0
MANY = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def transitions(draw: st.DrawFn, snapshot: Snapshot) -> Transition:
    """Any transition, mostly with the right epoch."""
    by = draw(st.sampled_from(AUTHORS))
    at_ms = draw(st.integers(0, 1_000_000))
    about = {"by": by, "at_ms": at_ms}
    name = draw(st.sampled_from(["ann", "bob"]))
    partition = draw(st.sampled_from(PARTITIONS))
    lease = snapshot.leases.get(partition, Lease(partition))
    of = {**about, "partition": partition, "epoch": lease.epoch}
    load = draw(st.none() | st.builds(Load, st.sampled_from([1.0, 2.0]), st.just(0.0)))
    return draw(
        st.sampled_from(
            [
                Join(**about),
                Heartbeat(**about),
                Leave(**about),
                Drain(**about, member=name, undo=draw(st.booleans())),
                AddPartitions(**about, partitions=(partition,), checkpoint=Position(-1)),
                Claim(**of),
                Claim(**of, unchanged_counter=lease.counter),
                Steal(**of),
                Renew(**of, load=load),
                Checkpoint(**of, position=Position(draw(st.integers(-1, 3))), load=load),
                Release(**of),
                RequestHandover(**of, to=name, timeout_ms=draw(st.sampled_from([1_000, 20_000]))),
                CancelHandover(**of),
                HandOver(**of),
            ]
        )
    )


@st.composite
def chains(draw: st.DrawFn) -> list[Snapshot]:
    """The versions of a group, each a few transitions after the one before."""
    chain = [Snapshot(GROUP).with_last_changed(LastChanged())]
    for _ in range(draw(st.integers(1, 15))):
        some = draw(st.lists(transitions(chain[-1]), min_size=1, max_size=4))
        new = apply(chain[-1], some).after
        chain.append(new if new is chain[-1] else new.written_as(new.version + 1))
    return chain


@dataclass
class Plain:
    """The definition: when each value was first seen, and whether that was at the first look."""

    seen: dict[tuple[str, str], tuple[object, float, bool]] = field(default_factory=dict)
    begun: bool = False

    def look(self, snapshot: Snapshot, now: float) -> None:
        values: dict[tuple[str, str], object] = {}
        for partition, lease in snapshot.leases.items():
            values["lease", partition] = lease.counter
            values["epoch", partition] = lease.epoch
            if lease.handover:
                values["handover", partition] = lease.handover
        values |= {("member", id): member.counter for id, member in snapshot.members.items()}
        kept = {key: old for key, old in self.seen.items() if key in values and old[0] == values[key]}
        self.seen = {key: kept.get(key, (value, now, not self.begun)) for key, value in values.items()}
        self.begun = True

    def stale(self, kind: str, key: str, row: Lease | Member, now: float, wall_ms: int) -> bool:
        _, since, cold = self.seen[kind, key]
        old = wall_ms - row.renewed_at_ms >= (DURATION + CLOCK_SKEW_ALLOWANCE) * 1000
        return now - since >= DURATION or (cold and old and now - since >= DURATION / 3)


@MANY
@given(chain=chains(), looks=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=40))
def test_what_an_observer_finds_is_what_it_would_find_by_comparing_everything(
    chain: list[Snapshot], looks: list[tuple[bool, int]]
) -> None:
    """An observer with a last-changed index, one that compares snapshots, and the definition agree."""
    followed, compared, plain = Observations(), Observations(), Plain()
    index, now = 0, 0.0
    for newer, passed in looks:
        index, now = min(index + newer, len(chain) - 1), now + passed
        snapshot, wall_ms = chain[index], 400_000 + round(now * 1000)
        bare = Snapshot(GROUP, snapshot.version, snapshot.leases, snapshot.members)
        followed, compared = followed.updated(snapshot, now), compared.updated(bare, now)
        plain.look(snapshot, now)
        leases, members = snapshot.leases, snapshot.members
        expired = {p for p, row in leases.items() if row.owner and plain.stale("lease", p, row, now, wall_ms)}
        gone = {id for id, row in members.items() if plain.stale("member", id, row, now, wall_ms)}
        pending = {p: row.handover for p, row in leases.items() if row.handover}
        overdue = {p for p, each in pending.items() if now - plain.seen["handover", p][1] >= each.timeout_ms / 1000}
        tenured = {p for p in leases if plain.seen["epoch", p][2] or now - plain.seen["epoch", p][1] >= TENURE}
        for observations, seen in ((followed, snapshot), (compared, bare)):
            assert expired_leases(observations, seen, now, wall_ms, DURATION) == expired
            assert expired_members(observations, seen, now, wall_ms, DURATION) == gone
            assert overdue_handovers(observations, seen, now) == overdue
            assert tenured_leases(observations, seen, now, TENURE) == tenured
            assert {p: each.since for p, each in observations.leases.items()} == {
                p: plain.seen["lease", p][1] for p in leases
            }
            assert {p: each.since for p, each in observations.handovers.items()} == {
                p: plain.seen["handover", p][1] for p in pending
            }


@MANY
@given(chain=chains())
def test_ownership_is_the_same_object_until_any_of_it_changes(chain: list[Snapshot]) -> None:
    for before, after in itertools.pairwise(chain):
        computed = Ownership.of(after.leases, after.members)
        assert after.ownership == computed
        assert (after.ownership is before.ownership) == (Ownership.of(before.leases, before.members) == computed)
        assert after.member_ids == after.members.keys()
        partitions = tuple(PARTITIONS)
        assert after.covers(partitions) == (after.leases.keys() == set(partitions))
        assert after.covers(tuple(after.leases))


@MANY
@given(chain=chains())
def test_the_load_version_is_another_object_after_any_change_of_load(chain: list[Snapshot]) -> None:
    def loads(snapshot: Snapshot) -> object:
        leases = {p: (lease.load, lease.pin) for p, lease in snapshot.leases.items()}
        members = {id: (row.load, row.max_owned, row.strategy) for id, row in snapshot.members.items()}
        return leases, members

    for before, after in itertools.pairwise(chain):
        assert (after.load_version is before.load_version) == (loads(before) == loads(after))


@MANY
@given(chain=chains())
def test_a_state_is_the_same_object_exactly_when_there_is_nothing_to_write(chain: list[Snapshot]) -> None:
    for before, after in itertools.pairwise(chain):
        assert (after is before) == ((after.leases, after.members) == (before.leases, before.members))


def test_replace_does_not_copy_the_cache() -> None:
    lease = Lease("0", "ann", 1, handover=Handover("bob", 1000))
    snapshot = Snapshot(GROUP, leases=MappingProxyType({"0": lease}))
    assert snapshot.ownership.owned == {"ann": ("0",)}
    member = Member("bob", "bob-1", 1, state=MemberState.LEAVING)
    other = replace(snapshot, leases={"0": replace(lease, owner="bob", handover=None)}, members={"bob": member})
    assert other.ownership == Ownership({"bob": ("0",)}, {}, {}, frozenset({("bob", "bob-1", MemberState.LEAVING)}))
    assert other.leader is None
