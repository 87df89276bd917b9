"""What an observer finds in any chain of snapshots equals the plain definition, and when `apply` changes a state."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.changes import (
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
from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.expiry import (
    CLOCK_SKEW_ALLOWANCE,
    Observations,
    expired_leases,
    expired_members,
    overdue_handovers,
    untenured_leases,
)
from spark_ehbalance.group.model import Author, Lease, Load, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

AUTHORS = [Author(name, f"{name}-{number}") for name in ("ann", "bob") for number in (1, 2)]
PARTITIONS = ["0", "1", "2"]
DURATION, TENURE = 30.0, 100.0


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
    chain = [Snapshot(GROUP)]
    for _ in range(draw(st.integers(1, 15))):
        some = draw(st.lists(transitions(chain[-1]), min_size=1, max_size=4))
        new = apply(chain[-1], some).after
        chain.append(new if new is chain[-1] else replace(new, version=new.version + 1))
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


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains(), looks=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=40))
def test_what_an_observer_finds_is_what_it_would_find_by_comparing_everything(
    chain: list[Snapshot], looks: list[tuple[bool, int]]
) -> None:
    for before, after in itertools.pairwise(chain):
        nothing_to_write = (after.leases, after.members) == (before.leases, before.members)
        assert (after is before) == nothing_to_write
    observations, plain = Observations(), Plain()
    index, now = 0, 0.0
    for newer, passed in looks:
        index, now = min(index + newer, len(chain) - 1), now + passed
        snapshot, wall_ms = chain[index], 400_000 + round(now * 1000)
        observations = observations.updated(snapshot, now)
        plain.look(snapshot, now)
        leases, members = snapshot.leases, snapshot.members
        expired = {p for p, row in leases.items() if row.owner and plain.stale("lease", p, row, now, wall_ms)}
        gone = {id for id, row in members.items() if plain.stale("member", id, row, now, wall_ms)}
        pending = {p: row.handover for p, row in leases.items() if row.handover}
        overdue = {p for p, each in pending.items() if now - plain.seen["handover", p][1] >= each.timeout_ms / 1000}
        epochs = {p: plain.seen["epoch", p] for p in leases}
        untenured = {p for p, (_, since, cold) in epochs.items() if not cold and now - since < TENURE}
        durations = Durations.of(snapshot, DURATION)
        assert expired_leases(observations, snapshot, durations, now, wall_ms) == expired
        assert expired_members(observations, snapshot, durations, now, wall_ms) == gone
        assert overdue_handovers(observations, snapshot, now) == overdue
        assert untenured_leases(observations, now, TENURE) == untenured
        assert {p: each.since for p, each in observations.leases.items()} == {
            p: plain.seen["lease", p][1] for p in leases
        }
        assert {p: each.since for p, each in observations.handovers.items()} == {
            p: plain.seen["handover", p][1] for p in pending
        }


@pytest.mark.parametrize(("commit_ms", "said", "seconds"), [(100.0, 30, 100), (None, 30, 50), (100.0, 120, 120)])
def test_nobody_is_judged_by_less_than_the_group_needs(commit_ms: float | None, said: int, seconds: float) -> None:
    row = Member("ann", "ann-1", 1, lease_duration_ms=1000 * said, commit_ms=commit_ms)
    members = {f"{number}": replace(row, id=f"{number}", joined=number) for number in range(100)}
    snapshot = replace(Snapshot(GROUP), leases={"0": Lease("0", "0", 1)}, members=members)
    seen = Observations().updated(snapshot, 0.0)
    for now in (seconds - 0.1, seconds + 0.1):
        arguments = (seen.updated(snapshot, now), snapshot, Durations.of(snapshot, DURATION, 50.0), now, 0)
        assert (expired_leases(*arguments), expired_members(*arguments)) == (
            (frozenset(), frozenset()) if now < seconds else ({"0"}, members.keys())
        )
