"""How members adopt the group's lease duration, and that a change never makes them declare a live member dead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Claim, Heartbeat, Join, Renew, Transition, apply
from spark_ehbalance.group.durations import Durations, minimum_tenure
from spark_ehbalance.group.expiry import expired_leases, expired_members
from spark_ehbalance.group.member.lease_duration import LeaseDuration
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks, Membership
from spark_ehbalance.group.member.pending import pending
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Author, Lease, Pin, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES
from tests.group.member.one import START, One
from tests.lease_table.store_conformance import ANN, BOB, GROUP

# --- random reads and changes --------------------------------------------------------------------------------------


@dataclass
class Process:
    """A member that reads, decides, and commits the decision later."""

    membership: Membership
    decided: list[Transition]
    looked: float = 0.0


class World:
    """Three members with one partition each, in a table whose lease duration can be edited at any time.

    Fails if an owner relies on a lease that another member considers expired.
    """

    def __init__(self, configured: tuple[float, float, float], in_table: float) -> None:
        self.now = 0.0
        leases = {str(number): Lease(str(number), checkpoint=Position(-1)) for number in range(3)}
        self.table = Snapshot(
            GROUP,
            leases=MappingProxyType(leases),
            table=TableIdentity("one"),
            lease_duration_ms=round(1000 * in_table),
        )
        self.processes: dict[str, Process] = {}
        for number, seconds in enumerate(configured):
            author = Author(f"member-{number}", "1")
            membership = Membership.initial(author, Settings(STRATEGIES["greedy"], seconds))
            self.processes[author.id] = Process(membership, [])
            self.look(number)
            claim = Claim(by=author, at_ms=0, partition=str(number), epoch=0)
            self.process(number).decided = [*self.process(number).membership.join(0, QueryState()), claim]
            self.commit(number)

    def process(self, number: int) -> Process:
        return self.processes[f"member-{number}"]

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.now, round(1000 * self.now))

    def set_duration(self, seconds: float) -> None:
        change = replace(self.table, version=self.table.version + 1, lease_duration_ms=round(1000 * seconds))
        self.table = change

    def touch(self, number: int) -> None:
        """Change a lease in a way that is not a heartbeat: a pin."""
        lease = self.table.leases[str(number)]
        pinned = replace(lease, pin=None if lease.pin else Pin("nobody", "somebody"))
        leases = MappingProxyType({**self.table.leases, str(number): pinned})
        self.table = replace(self.table, version=self.table.version + 1, leases=leases)

    def look(self, number: int, *, beats: bool = True, renews: bool = True) -> None:
        """Read and decide: a heartbeat, renewals, and claims of expired leases."""
        process, by = self.process(number), Author(f"member-{number}", "1")
        at_ms = self.clocks.wall_ms
        process.membership = me = process.membership.after_read(self.table, self.clocks, QueryState())
        process.looked, process.decided = self.now, []
        if beats:
            process.decided.append(me.heartbeat(at_ms, QueryState()))
        for partition, holding in me.owned.items() if renews else ():
            process.decided.append(Renew(by=by, at_ms=at_ms, partition=partition, epoch=holding.epoch))
        if not me.joined:
            return
        seen = (
            me.group_state.observations,
            self.table,
            Durations.from_snapshot(self.table, me.duration.group),
            self.now,
            at_ms,
        )
        for partition in expired_leases(*seen).difference(me.owned):
            lease = self.table.leases[partition]
            self.check_given_up(partition, lease.owner)
            process.decided.append(
                Claim(by=by, at_ms=at_ms, partition=partition, epoch=lease.epoch, unchanged_counter=lease.counter)
            )
        for id in expired_members(*seen) - {by.id}:
            assert not any(self.now < lease.ends for lease in self.processes[id].membership.owned.values())

    def commit(self, number: int, *, answered: bool = True) -> None:
        """Commit the decision of the last read; unless `answered`, the member does not learn the result."""
        process = self.process(number)
        outcome = apply(self.table, process.decided)
        for claim in outcome.accepted:
            if isinstance(claim, Claim):
                self.check_given_up(claim.partition, outcome.before.leases[claim.partition].owner)
        if outcome.after is not outcome.before:
            outcome = replace(outcome, after=replace(outcome.after, version=self.table.version + 1))
        self.table, process.decided = outcome.after, []
        if answered:
            looked = Clocks(process.looked, round(1000 * process.looked))
            process.membership = process.membership.after_commit(outcome, looked, self.now, QueryState())

    def check_given_up(self, partition: str, owner: str | None) -> None:
        if owner is not None:
            holding = self.processes[owner].membership.owned.get(partition)
            assert holding is None or self.now >= holding.ends, f"{owner} counts on {partition} at {self.now}"


_SECONDS = st.sampled_from([10.0, 30.0, 37.5, 120.0, 600.0])
_WAITS = st.sampled_from([0.0, 0.1, 3.0, 9.9, 10.0, 29.0, 30.0, 31.0, 100.0]) | st.floats(0, 700)
_STEPS = st.one_of(
    st.tuples(st.sampled_from(["look", "beat", "renew", "only look", "commit", "lost", "touch"]), st.integers(0, 2)),
    st.tuples(st.just("set"), _SECONDS),
)

_LOOKED: list[Any] = [(0, ("look", 0)), (0, ("commit", 0))]
_RAISED: list[Any] = [(0, ("set", 120.0)), (0, ("beat", 0)), (0, ("commit", 0))]
#: Another member reads, and nothing else happens.
_SILENT: list[Any] = [(10, ("only look", 1))]


@settings(max_examples=200, deadline=None)
@given(
    configured=st.tuples(_SECONDS, _SECONDS, _SECONDS),
    in_table=_SECONDS,
    steps=st.lists(st.tuples(_WAITS, _STEPS), max_size=40),
)
# Lowered: the owner has not read since, but others have.
@example((120, 30, 30), 120, [*_LOOKED, (1, ("set", 30.0)), *_SILENT * 5])
# Lowered, and the owner has written the new duration without having read it.
@example((120, 30, 30), 120, [(0, ("set", 30.0)), (0, ("beat", 0)), (0, ("lost", 0)), *_SILENT * 5])
# Raised, and renewed before the new duration is in the owner's row.
@example((30, 30, 30), 30, [(0, ("set", 120.0)), (0, ("renew", 0)), (0, ("commit", 0)), *_SILENT * 5])
# Raised, and written after another member decided to claim the lease.
@example((30, 30, 30), 30, [*_SILENT * 4, *_RAISED, (1, ("commit", 1))])
# The same, and an operator has changed the lease.
@example((30, 30, 30), 30, [*_SILENT * 4, *_RAISED, (0, ("touch", 0)), (0, ("only look", 0)), (1, ("commit", 1))])
# Committed between another member's read and its lost race, after which that member reads all the time.
@example(
    (30, 30, 30),
    30,
    [
        *[(0, ("look", 1)), (14, ("look", 0)), (0, ("commit", 0)), (0.1, ("commit", 1))],
        *[(8, ("only look", 1)), (8.9, ("only look", 1))],
    ],
)
def test_owner_never_relies_on_a_lease_that_others_consider_expired(
    configured: tuple[float, float, float], in_table: float, steps: list[tuple[float, tuple[str, float]]]
) -> None:
    world = World(configured, in_table)
    for wait, (what, which) in steps:
        world.now += wait
        if what == "set":
            world.set_duration(which)
        elif what == "touch":
            world.touch(int(which))
        elif what in ("commit", "lost"):
            world.commit(int(which), answered=what == "commit")
        else:
            world.look(int(which), beats=what in ("look", "beat"), renews=what in ("look", "renew"))


@settings(max_examples=40, deadline=None)
@given(
    configured=st.tuples(_SECONDS, _SECONDS, _SECONDS),
    in_table=_SECONDS,
    changes=st.lists(st.tuples(st.floats(0, 300), _SECONDS), max_size=6),
    late=st.floats(0, 0.6),
)
def test_timely_renewed_lease_is_never_taken(
    configured: tuple[float, float, float], in_table: float, changes: list[tuple[float, float]], late: float
) -> None:
    """Timely as far as the owner knows: when renewals are due, or later by a fraction of its lease duration."""
    world, end = World(configured, in_table), 600.0
    at = sorted((time, seconds) for time, seconds in changes)
    layout = {partition: lease.owner for partition, lease in world.table.leases.items()}
    while world.now < end:
        due = {
            number: process.membership.renewal_due() + late * process.membership.duration.own
            for number, process in enumerate(world.processes.values())
        }
        number = min(due, key=due.__getitem__)
        if at and at[0][0] <= due[number]:
            world.now, seconds = max(world.now, at[0][0]), at.pop(0)[1]
            world.set_duration(seconds)
        else:
            world.now = max(world.now, due[number])
            world.look(number, beats=False, renews=False)
            process = world.process(number)
            process.decided += pending(process.membership, QueryState({}), frozenset(), world.clocks, leaving=False)
            assert process.decided, "what is due is written"
            world.commit(number)
    assert {partition: lease.owner for partition, lease in world.table.leases.items()} == layout


# --- adopting a duration -------------------------------------------------------------------------------------------


def table(*members: tuple[Author, float | None], in_force: float | None = None, commit_ms: float = 1.0) -> Snapshot:
    """A table with these members and their lease durations in seconds; the first member leads."""
    snapshot = Snapshot(
        GROUP, table=TableIdentity("one"), lease_duration_ms=None if in_force is None else round(1000 * in_force)
    )
    for by, seconds in members:
        stated = None if seconds is None else round(1000 * seconds)
        join = Join(by=by, at_ms=0, lease_duration_ms=stated)
        snapshot = apply(snapshot, [join, Heartbeat(by=by, at_ms=0, commit_ms=commit_ms)]).after
    return snapshot


def test_longer_duration_applies_once_it_is_in_the_members_row() -> None:
    seen = LeaseDuration.initial(ANN, 30)
    for stated, in_force, own in ((30, 60, 30), (60, 60, 60), (60, 40, 40)):  # a shorter one applies immediately
        seen = seen.updated(table((ANN, stated), in_force=in_force))
        assert (seen.group, seen.own) == (in_force, own)


@pytest.mark.parametrize(
    ("author", "configured", "in_force", "commit_ms", "sets"),
    [
        (ANN, 30, None, 1.0, [30]),
        (ANN, 30, 30, 1.0, []),
        (BOB, 20, None, 1.0, []),
        (ANN, 16, 16, 1000.0, [20]),
    ],
    ids=["the leader", "done", "another than the leader", "commits need longer"],
)
def test_leader_sets_the_configured_or_the_required_duration(
    author: Author, configured: float, in_force: float | None, commit_ms: float, sets: list[float]
) -> None:
    both = table((ANN, configured), (BOB, configured), in_force=in_force, commit_ms=commit_ms)
    _, changes = LeaseDuration.initial(author, configured).updated(both).next_change(both, 0.0, 0)
    assert [change.lease_duration_ms / 1000 for change in changes] == sets


def test_duration_is_lowered_after_a_minimum_tenure() -> None:
    def small(commit_ms: float) -> Snapshot:
        return table((ANN, 25), (BOB, 25), in_force=25, commit_ms=commit_ms)

    duration, tenure, set_to = LeaseDuration.initial(ANN, 16), minimum_tenure(16), dict[float, list[float]]()
    for now, commit_ms in (
        (0, 1000),  # 20 s are needed, so it is not clearly too long
        (1, 100),
        (tenure / 2, 900),
        (tenure / 2 + 1, 100),
        (1.5 * tenure, 100),  # it was not too long for the whole tenure
        (1.5 * tenure + 2, 100),
    ):
        duration, changes = duration.updated(small(commit_ms)).next_change(small(commit_ms), now, 0)
        set_to[now] = [change.lease_duration_ms / 1000 for change in changes]
    assert {now: seconds for now, seconds in set_to.items() if seconds} == {1.5 * tenure + 2: [16]}


def test_commit_time_is_the_median_of_several_commits() -> None:
    duration = LeaseDuration.initial(ANN, 30).with_commit(5.0)
    assert duration.commit_ms is None
    duration = duration.with_commit(0.012)
    assert duration.commit_ms == pytest.approx(12)
    for _ in range(9):
        duration = duration.with_commit(0.2)
    assert duration.commit_ms == pytest.approx(200), "earlier ones are forgotten"
    for _ in range(9):
        duration = duration.with_commit(50)
    assert duration.commit_ms == 1000, "that is evidence of the process, not of the store"


def test_differing_configuration_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    group = table((ANN, 30), (BOB, 30), in_force=30)
    LeaseDuration.initial(BOB, 20).updated(group).updated(group)
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.message == (
        "The group's lease duration applies, not the configured one. group=30 leaseDuration=20 leader=ann"
    )
    LeaseDuration.initial(ANN, 30).updated(group)
    LeaseDuration.initial(ANN, 16).updated(table((ANN, 16), (BOB, 16), in_force=20, commit_ms=1000))
    assert len(caplog.records) == 1, "no warning from a member with this setting, nor if commits need it"


def test_dead_member_with_a_shorter_duration_is_detected_in_time() -> None:
    one = One(read_interval=10.0, balance_interval=10.0)
    one.others(
        Join(by=BOB, at_ms=0, lease_duration_ms=60_000),
        Join(by=Author("cat", "cat-1"), at_ms=0, lease_duration_ms=5_000),
    )
    one.add(Lease("7", BOB.id, 1, checkpoint=START), Lease("8", "cat", 1, checkpoint=START))
    stated = {id: replace(member, commit_ms=900.0) for id, member in one.table.members.items()}
    one.table = replace(one.table, members=stated, lease_duration_ms=60_000, version=90)
    end = one.now + 300
    while one.now < end:
        one.turn(balance=True)
        one.now = max(one.now + 0.01, one.ann.due())
    assert {lease.owner for lease in one.table.leases.values()} == {"ann"}
    assert one.table.members.keys() == {"ann"}
