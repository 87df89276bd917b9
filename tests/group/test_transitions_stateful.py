"""Invariants of a group whose members act on stale snapshots. The expired leases found by an occasional observer equal
those of a plain definition."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_ehbalance.group.changes import (
    AddPartitions,
    CancelHandover,
    Checkpoint,
    Claim,
    Defend,
    Drain,
    EndTransfer,
    Forget,
    HandOver,
    Heartbeat,
    Join,
    LeaseTransition,
    Leave,
    Release,
    Renew,
    RequestHandover,
    Stall,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.commands import PartitionCommand, PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.expiry import (
    CLOCK_SKEW_ALLOWANCE,
    Observations,
    expired_leases,
    expired_members,
    overdue_handovers,
    recently_moved_leases,
)
from spark_ehbalance.group.model import Author, Lease, Member, MemberState
from spark_ehbalance.group.ownership import Ownership
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

NAMES = st.sampled_from(["ann", "bob", "cat"])
PARTITIONS = st.sampled_from(["0", "1"])
WITHOUT_EVIDENCE = [CancelHandover, Defend, EndTransfer, Steal, Renew, Release, HandOver]
CLOCK = st.integers(0, 2**20)  # wall clocks are arbitrary, because only an observer's cold start compares them
OPERATOR = Author("operator", "")
DURATION, TENURE = 30.0, 100.0


@dataclass
class Plain:
    """The plain definition: when each value was first read, and whether that was in the first read."""

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

    def stale(self, kind: str, key: str, row: Lease | Member, duration: float, now: float, wall_ms: int) -> bool:
        _, since, cold = self.seen[kind, key]
        old = wall_ms - row.renewed_at_ms >= (duration + CLOCK_SKEW_ALLOWANCE) * 1000
        return now - since >= duration or (cold and old and now - since >= duration / 3)


def compare_observed(
    observations: Observations, plain: Plain, snapshot: Snapshot, durations: Durations, now: float, wall_ms: int
) -> None:
    """Compare what the `observations` of `snapshot` show with the `plain` definition."""
    leases, members, seen, allowed = snapshot.leases, snapshot.members, plain.seen, durations.allowed_silence
    pending = {p: row.handover for p, row in leases.items() if row.handover}
    assert expired_leases(observations, snapshot, durations, now, wall_ms) == {
        p for p, row in leases.items() if row.owner and plain.stale("lease", p, row, allowed(row.owner), now, wall_ms)
    }
    assert expired_members(observations, snapshot, durations, now, wall_ms) == {
        id for id, row in members.items() if plain.stale("member", id, row, allowed(id), now, wall_ms)
    }
    assert overdue_handovers(observations, snapshot, now) == {
        p for p, handover in pending.items() if now - seen["handover", p][1] >= handover.timeout_ms / 1000
    }
    epochs = {p: seen["epoch", p] for p in leases}
    assert recently_moved_leases(observations, now, TENURE) == {
        p for p, (_, since, cold) in epochs.items() if not cold and now - since < TENURE
    }
    assert {p: lease.since for p, lease in observations.leases.items()} == {p: seen["lease", p][1] for p in leases}
    assert {p: handover.since for p, handover in observations.handovers.items()} == {
        p: seen["handover", p][1] for p in pending
    }


class SeveralMembers(RuleBasedStateMachine):
    """A process (an incarnation of a member) acts on the snapshot from its last read, however old; a commit's result
    counts as a read. Fenced processes continue to act."""

    def __init__(self) -> None:
        super().__init__()
        self.truth = Snapshot(
            GROUP,
            leases=MappingProxyType({partition: Lease(partition) for partition in "01"}),
        )
        self.seen: dict[Author, Snapshot] = {}
        self.fenced: set[Author] = set()
        self.owners: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.now = 0.0
        self.observations, self.plain = Observations(), Plain()

    @initialize()
    def start(self) -> None:
        for name in ("ann", "bob", "cat"):
            self.start_process(name, 0)

    # actions of processes

    @precondition(lambda self: len(self.seen) < 5)
    @rule(name=NAMES, at_ms=CLOCK)
    def start_process(self, name: str, at_ms: int) -> None:
        """Start a process with the id `name`, which fences earlier processes with that id."""
        author = Author(name, f"{name}-{9 - len(self.seen)}")  # incarnations are unordered
        self.seen[author] = self.truth
        self.write(Join(by=author, at_ms=at_ms))
        self.fenced |= {other for other in self.seen if other.id == name} - {author}

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        self.seen[self.any_process(data)] = self.truth

    @rule(data=st.data(), at_ms=CLOCK, partition=PARTITIONS, start=st.none() | st.integers(-1, 5))
    def claim(self, data: st.DataObject, at_ms: int, partition: str, start: int | None) -> None:
        """Claim a partition with or without evidence, whether or not it seems free."""
        by = self.any_process(data)
        lease = self.seen[by].leases[partition]
        unchanged = data.draw(st.sampled_from([None, lease.counter]))
        overdue = data.draw(st.sampled_from([None, lease.handover]))
        position = None if start is None else Position(start)
        claim = Claim(
            by=by,
            at_ms=at_ms,
            partition=partition,
            epoch=lease.epoch,
            unchanged_counter=unchanged,
            overdue_handover=overdue,
            starting_position=position,
        )
        now = self.truth.leases[partition]
        if self.write(claim) and now.owner not in (None, by.id):
            handed_over = overdue is not None and overdue == now.handover and overdue.to == by.id
            assert now.counter == unchanged or handed_over, "a live lease is claimed only with evidence"

    @rule(data=st.data(), at_ms=CLOCK, partition=PARTITIONS, kind=st.sampled_from(WITHOUT_EVIDENCE))
    def act(self, data: st.DataObject, at_ms: int, partition: str, kind: type[LeaseTransition]) -> None:
        by = self.any_process(data)
        self.write(kind(by=by, at_ms=at_ms, partition=partition, epoch=self.seen[by].leases[partition].epoch))

    @rule(data=st.data(), at_ms=CLOCK, partition=PARTITIONS, sequence_number=st.integers(-1, 10))
    def checkpoint(self, data: st.DataObject, at_ms: int, partition: str, sequence_number: int) -> None:
        """Write a checkpoint, which a process does only for leases that it owned at its last read."""
        by = self.any_process(data)
        lease = self.seen[by].leases[partition]
        if lease.owner == by.id:
            position = Position(sequence_number)
            self.write(Checkpoint(by=by, at_ms=at_ms, partition=partition, epoch=lease.epoch, position=position))

    @rule(data=st.data(), at_ms=CLOCK, partition=PARTITIONS)
    def stall(self, data: st.DataObject, at_ms: int, partition: str) -> None:
        """Let a task of any process report a stall, based on any read; this is not a checkpoint."""
        seen = self.seen[self.any_process(data)].leases[partition]
        if seen.owner is None:
            return
        task, now = Author(seen.owner, ""), self.truth.leases[partition]
        stall = Stall(by=task, at_ms=at_ms, partition=partition, epoch=seen.epoch, since_ms=seen.owned_since_ms)
        if not self.write(stall):
            assert not now.still_owned(seen.epoch, seen.owned_since_ms)
            return
        assert now.owner in (None, seen.owner)
        stalled = self.truth.leases[partition]
        assert (stalled.owner, stalled.stall_count) == (None, now.stall_count + 1)
        assert not stalled.still_owned(seen.epoch, seen.owned_since_ms)

    @rule(data=st.data(), at_ms=CLOCK, partition=PARTITIONS, to=NAMES, timeout_ms=st.sampled_from([1_000, 20_000]))
    def request_handover(self, data: st.DataObject, at_ms: int, partition: str, to: str, timeout_ms: int) -> None:
        by = self.any_process(data)
        epoch = self.seen[by].leases[partition].epoch
        about = {"by": by, "at_ms": at_ms, "partition": partition, "epoch": epoch}
        self.write(RequestHandover(**about, to=to, timeout_ms=timeout_ms))

    @rule(data=st.data(), at_ms=CLOCK)
    def beat(self, data: st.DataObject, at_ms: int) -> None:
        self.write(Heartbeat(by=self.any_process(data), at_ms=at_ms))

    @rule(at_ms=CLOCK, name=NAMES, undo=st.booleans())
    def drain(self, at_ms: int, name: str, undo: bool) -> None:
        self.write(Drain(by=OPERATOR, at_ms=at_ms, member=name, undo=undo))

    @rule(at_ms=CLOCK, partition=PARTITIONS, name=NAMES, kind=st.sampled_from([PinTo, Transfer]))
    def order_a_move(self, at_ms: int, partition: str, name: str, kind: type[PinTo | Transfer]) -> None:
        if self.write(kind(by=OPERATOR, at_ms=at_ms, partition=partition, to=name, timeout_ms=1)):
            pin = self.truth.leases[partition].pin
            assert pin is not None
            assert (pin.to, pin.transfer) == (name, kind is Transfer)

    @rule(at_ms=CLOCK, partition=PARTITIONS)
    def unpin(self, at_ms: int, partition: str) -> None:
        self.write(Unpin(by=OPERATOR, at_ms=at_ms, partition=partition))

    @rule(at_ms=CLOCK, partition=PARTITIONS, sequence_number=st.integers(-1, 10), force=st.booleans())
    def seek(self, at_ms: int, partition: str, sequence_number: int, force: bool) -> None:
        """Seek forward or back; writes based on an earlier read are rejected."""
        owner = self.truth.leases[partition].owner
        done = self.write(
            Seek(by=OPERATOR, at_ms=at_ms, partition=partition, position=Position(sequence_number), force=force)
        )
        assert done is (force or owner is None)

    @rule(data=st.data(), at_ms=CLOCK, name=NAMES)
    def leave_or_be_forgotten(self, data: st.DataObject, at_ms: int, name: str) -> None:
        """Leave or forget another member; a member that is gone rejoins unless its id is taken."""
        by = self.any_process(data)
        if by.id == name:
            self.write(Leave(by=by, at_ms=at_ms))
        elif member := self.seen[by].members.get(name):
            self.write(Forget(by=by, at_ms=at_ms, member=name, counter=member.counter))
        for author in list(self.seen):
            if author not in self.fenced and author.id not in self.truth.members:
                self.write(Join(by=author, at_ms=at_ms))

    @rule(data=st.data(), at_ms=CLOCK, partitions=st.lists(PARTITIONS, min_size=1))
    def add_partitions(self, data: st.DataObject, at_ms: int, partitions: list[str]) -> None:
        """Add partitions from their first event; existing ones keep their checkpoints."""
        self.write(
            AddPartitions(by=self.any_process(data), at_ms=at_ms, partitions=tuple(partitions), checkpoint=Position(-1))
        )

    @rule(passed=st.integers(0, 40))
    def observe(self, passed: int) -> None:
        self.now += passed
        now, snapshot, wall_ms = self.now, self.truth, 400_000 + round(self.now * 1000)
        self.observations = observations = self.observations.updated(snapshot, now)
        self.plain.look(snapshot, now)
        compare_observed(observations, self.plain, snapshot, Durations.from_snapshot(snapshot, DURATION), now, wall_ms)

    # invariants

    def any_process(self, data: st.DataObject) -> Author:
        return data.draw(st.sampled_from(list(self.seen)))

    def write(self, transition: Transition) -> bool:
        """Apply `transition` to the true state. Returns whether it was accepted."""
        before = self.truth
        leases, members = dict(before.leases), dict(before.members)
        outcome = apply(before, [transition])
        after, accepted = outcome.after, bool(outcome.accepted)

        assert (before.leases, before.members) == (leases, members), "a snapshot never changes"
        assert (after is before) == ((after.leases, after.members) == (leases, members)), "nothing to write"
        assert accepted != bool(outcome.rejected)
        if not accepted:
            assert after == before, "a refused transition changes nothing"
        if transition.by in self.fenced:
            assert after == before, "a fenced process changes nothing"
        if isinstance(transition, LeaseTransition) and accepted:
            assert transition.epoch == leases[transition.partition].epoch, "the owner changed since the author's look"
        if isinstance(transition, (Steal, RequestHandover)) and accepted:
            lease = leases[transition.partition]
            pinned_to = members.get(lease.pin.to) if lease.pin else None
            assert pinned_to is None or lease.owner != pinned_to.id or pinned_to.state is MemberState.LEAVING
        for partition, lease in after.leases.items():
            if isinstance(transition, Seek) and partition == transition.partition and accepted:
                self.compare_sought(before.leases[partition], lease, transition.position)
            else:
                self.compare(before.leases[partition], lease, transition)
            if isinstance(transition, PartitionCommand):
                assert lease.owner == before.leases[partition].owner, "an order by itself changes no owner"
        assert after.ownership == Ownership.from_rows(after.leases, after.members), "the index equals a new one"
        self.truth = after if after is before else replace(after, version=before.version + 1)
        self.seen[transition.by] = self.truth
        return accepted

    def compare(self, before: Lease, after: Lease, transition: Transition) -> None:
        assert after.epoch in (before.epoch, before.epoch + 1)
        assert after.renewal >= before.renewal
        if (after.epoch == before.epoch and after.renewal > before.renewal) or (before.owner and not after.owner):
            assert transition.by.id == before.owner, "only the owner shows signs of life, and gives up"
        if after.owner not in (None, before.owner):
            assert after.epoch == before.epoch + 1, "a change of owner raises the epoch"
        stalls = after.stall_count > before.stall_count
        assert after.stall_count == 0 or after.checkpoint == before.checkpoint, "progress ends a stall"
        if after.epoch > before.epoch:
            assert (after.owner is None) is stalls
            assert after.handover is None, "a handover ends with the requested owner"
            assert before.checkpoint in (None, after.checkpoint), "a change of owner moves no checkpoint"
        if before.checkpoint is not None:
            assert after.checkpoint is not None
            assert after.checkpoint.sequence_number >= before.checkpoint.sequence_number

    def compare_sought(self, before: Lease, after: Lease, position: Position) -> None:
        assert (after.epoch, after.checkpoint, after.owner) == (before.epoch + 1, position, before.owner)
        assert after.counter != before.counter, "evidence from before the seek does not count"

    @invariant()
    def at_most_one_owner_per_epoch(self) -> None:
        for partition, lease in self.truth.leases.items():
            if lease.owner is not None:
                self.owners[partition, lease.epoch].add(lease.owner)
        assert all(len(owners) == 1 for owners in self.owners.values())

    @invariant()
    def an_owned_partition_has_a_position(self) -> None:
        assert all(lease.checkpoint is not None for lease in self.truth.leases.values() if lease.owner is not None)

    @invariant()
    def only_an_owned_partition_has_a_handover(self) -> None:
        for lease in self.truth.leases.values():
            if lease.handover is not None:
                assert lease.owner is not None
                assert lease.handover.to != lease.owner


TestSeveralMembers = SeveralMembers.TestCase
TestSeveralMembers.settings = settings(
    max_examples=75, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
