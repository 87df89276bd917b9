"""Transitions, by which members change a group's state, and `apply`, which rejects invalid ones. Operators'
commands are in `group.commands`.

Other members may change the table between the author's read and its write. So each transition contains its evidence (an
epoch, or a counter that did not change), and `apply` checks the evidence against the current state. `apply` does not
read a clock: the author observes that a lease expired or that a deadline passed, and the observation is valid until the
lease is renewed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Author, Handover, Lease, Load, Member, MemberLoad, MemberState, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot, oldest_active
from spark_ehbalance.group.working_copy import WorkingCopy

#: Maximum number of records of stopped queries, enough for six weeks of hourly jobs with new checkpoints. The limit is
#: not an age, because a member with a fast clock would then delete all other records.
_MAX_QUERIES = 1000


@dataclass(frozen=True, slots=True)
class Rejected:
    """A transition that is invalid in the current state, with the reason."""

    transition: Transition
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of applying transitions to `before`; `after` is the same object as `before` if nothing changed.

    `seconds` is the duration of the successful write, excluding the `lost_races` that preceded it; None if nothing was
    written."""

    before: Snapshot
    after: Snapshot
    accepted: tuple[Transition, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    seconds: float | None = None
    lost_races: int = 0


def apply(snapshot: Snapshot, transitions: Iterable[Transition]) -> Outcome:
    """Apply `transitions` in order. If two contradict each other, the first valid one wins.

    The new snapshot has the `version` of the old one, because the store increments the version when it writes the
    snapshot.
    """
    state = WorkingCopy.from_snapshot(snapshot)
    accepted, rejected = [], []
    for transition in transitions:
        reason = transition.rejection(state)
        if reason is None:
            transition.carry_out(state)
            accepted.append(transition)
        else:
            rejected.append(Rejected(transition, reason))
    return Outcome(snapshot, state.changed(snapshot), tuple(accepted), tuple(rejected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(ABC):
    """One change of the group's state. `at_ms` is the time on the author's wall clock. It is recorded but never
    compared."""

    by: Author
    at_ms: int

    @abstractmethod
    def rejection(self, state: WorkingCopy) -> str | None:
        """The reason why this transition is invalid in `state`; None if it is valid."""

    @abstractmethod
    def carry_out(self, state: WorkingCopy) -> None:
        """Change `state`. Called only if `rejection` returned None."""


# --- members ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Transition):
    """Become a member, or take over the membership of an earlier process with the same id, which is fenced.

    `lineage`, `batch`, `begun` and `planner` are the fields of `QueryRecord`; a consumer has no record. The transition
    is invalid if another process has continued the query since this one read its checkpoint. With `again`, this process
    has been a member before, so it is also invalid if any later process has joined since.
    """

    host: str = ""
    max_owned: int | None = None
    strategy: str = ""
    lease_duration_ms: int | None = None
    lineage: str = ""
    batch: int = 0
    begun: int = 0
    planner: str = ""
    again: bool = False

    def rejection(self, state: WorkingCopy) -> str | None:
        present, own = state.members.get(self.by.id), state.queries.get(self.lineage)
        if own and own.run != self.by.incarnation and not own.is_continued_by(self.begun, self.planner):
            return f"another process of the query has begun batch {own.begun}"
        others = [x for x in (present and present.incarnation, own and own.run) if x not in (None, self.by.incarnation)]
        if self.again and others:
            return f"a later process joined as {self.by.id}"
        joined = present is not None and present.incarnation == self.by.incarnation
        known = not self.lineage or (own is not None and own.run == self.by.incarnation)
        return f"{self.by.id} has already joined" if joined and known else None

    def carry_out(self, state: WorkingCopy) -> None:
        self._end_tenures_of_namesake(state)
        self._record(state)
        state.members[self.by.id] = Member(
            id=self.by.id,
            incarnation=self.by.incarnation,
            joined=1 + max((member.joined for member in state.members.values()), default=0),
            renewed_at_ms=self.at_ms,
            started_at_ms=self.at_ms,
            host=self.host,
            max_owned=self.max_owned,
            strategy=self.strategy,
            lease_duration_ms=self.lease_duration_ms,
        )

    def _end_tenures_of_namesake(self, state: WorkingCopy) -> None:
        """Restart the tenure of leases that another query with the same name owned, in a new epoch."""
        before = state.queries.get(self.lineage)
        if not self.lineage or (before is not None and before.owner == self.by.id):
            return
        for lease in state.leases.all().values():
            if lease.owner == self.by.id:
                state.leases[lease.partition] = replace(lease, epoch=lease.epoch + 1, owned_since_ms=self.at_ms)

    def _record(self, state: WorkingCopy) -> None:
        if not self.lineage:
            return
        before = state.queries.get(self.lineage)
        state.queries[self.lineage] = QueryRecord(
            self.lineage,
            self.by.incarnation,
            self.by.id,
            before.start + 1 if before else 1,
            max(self.batch, before.batch if before else 0),
            self.begun,
            self.planner,
            self.at_ms,
            self.host,
        )
        others = [query for query in state.queries.all().values() if query.lineage != self.lineage]
        running = {member.incarnation for member in state.members.values()}
        stopped = [query for query in others if query.run not in running]
        # Least is lost if no batch has begun, which is certain only if the query was stopped gracefully.
        stopped.sort(key=lambda query: (query.begun > 0, query.begun == 0 and query.run != "", query.at_ms))
        for query in stopped[: max(0, len(state.queries) - _MAX_QUERIES)]:
            del state.queries[query.lineage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Transition):
    """Record the query's last finished `batch` and its last `begun` batch, which the run `planner` planned.

    This transition is never committed alone."""

    lineage: str
    batch: int
    begun: int = 0
    planner: str = ""

    def rejection(self, state: WorkingCopy) -> str | None:
        if fenced := state.fenced(self.by):
            return fenced
        record = state.queries.get(self.lineage)
        if record is None or record.run != self.by.incarnation:
            return "the table has no record of this run of the query"
        return None

    def carry_out(self, state: WorkingCopy) -> None:
        record = state.queries[self.lineage]
        if self.begun >= record.begun:
            record = replace(record, begun=self.begun, planner=self.planner)
        state.queries[self.lineage] = replace(record, batch=max(self.batch, record.batch), at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Transition):
    """Renew the membership. A value that is not None replaces the previous one."""

    load: MemberLoad | None = None
    lease_duration_ms: int | None = None
    commit_ms: float | None = None
    asked_ms: int | None = None
    left_out: Mapping[str, str] | None = None

    def rejection(self, state: WorkingCopy) -> str | None:
        return state.fenced(self.by)

    def carry_out(self, state: WorkingCopy) -> None:
        member = state.members[self.by.id]
        state.members[self.by.id] = replace(
            member,
            renewal=member.renewal + 1,
            renewed_at_ms=self.at_ms,
            load=self.load or member.load,
            lease_duration_ms=self.lease_duration_ms or member.lease_duration_ms,
            commit_ms=self.commit_ms or member.commit_ms,
            asked_ms=self.asked_ms or member.asked_ms,
            left_out=member.left_out if self.left_out is None else self.left_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Transition):
    """Set `member` to leaving, so that it gets no partitions and hands over its own. With `undo`, set it to active.

    The author is the member itself, or an operator, who need not be a member. `why` is the operator's reason.
    """

    member: str
    undo: bool = False
    why: str = ""

    def rejection(self, state: WorkingCopy) -> str | None:
        if self.member not in state.members:
            return state.unknown_member(self.member)
        if self.by.incarnation and (fenced := state.fenced(self.by)):  # operators have none
            return fenced
        wanted = MemberState.ACTIVE if self.undo else MemberState.LEAVING
        return f"{self.member} is already {wanted.value}" if state.members[self.member].state is wanted else None

    def carry_out(self, state: WorkingCopy) -> None:
        wanted = MemberState.ACTIVE if self.undo else MemberState.LEAVING
        state.members[self.member] = replace(state.members[self.member], state=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Transition):
    """End the membership. Release the member's leases first: other members can claim unreleased leases only after they
    expire."""

    def rejection(self, state: WorkingCopy) -> str | None:
        return state.fenced(self.by)

    def carry_out(self, state: WorkingCopy) -> None:
        del state.members[self.by.id]
        for query in state.queries.all().values():
            if query.run == self.by.incarnation:
                state.queries[query.lineage] = replace(query, run="", at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Transition):
    """Remove another member whose heartbeat expired, because its `counter` did not change."""

    member: str
    counter: tuple[str, int]

    def rejection(self, state: WorkingCopy) -> str | None:
        if fenced := state.fenced(self.by):
            return fenced
        member = state.members.get(self.member)
        if member is None or member.counter != self.counter:
            return f"{self.member} has renewed its membership or left"
        return None

    def carry_out(self, state: WorkingCopy) -> None:
        del state.members[self.member]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLeaseDuration(Transition):
    """Set the group's lease duration, as its leader."""

    lease_duration_ms: int

    def rejection(self, state: WorkingCopy) -> str | None:
        if fenced := state.fenced(self.by):
            return fenced
        members = state.members.all().values()
        if (leader := oldest_active(members)) != self.by.id:
            return f"{leader} is the leader"
        return "the table has no partitions yet" if state.table is None else None

    def carry_out(self, state: WorkingCopy) -> None:
        state.lease_duration_ms = self.lease_duration_ms


# --- partitions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(Transition):
    """Add leases for partitions of the hub that are not in the table yet.

    Reading begins at `checkpoint`; if it is None, the first claim sets the position.
    """

    partitions: tuple[str, ...]
    checkpoint: Position | None = None

    def rejection(self, state: WorkingCopy) -> str | None:
        if fenced := state.fenced(self.by):
            return fenced
        return None if set(self.partitions) - state.leases.keys() else "the table already has these partitions"

    def carry_out(self, state: WorkingCopy) -> None:
        for partition in self.partitions:
            if partition not in state.leases:
                state.add(Lease(partition, checkpoint=self.checkpoint), self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Transition):
    """Set the position of a partition that has none. If `checkpoint` is None, the first claim sets the position.

    The author need not be a member. If the table is empty, the author's incarnation becomes the table's id. `why` is
    the operator's reason."""

    partition: str
    checkpoint: Position | None
    why: str = ""

    def rejection(self, state: WorkingCopy) -> str | None:
        lease = state.leases.get(self.partition)
        known = lease is not None and (lease.checkpoint is not None or self.checkpoint is None)
        return f"the table already has partition {self.partition}" if known else None

    def carry_out(self, state: WorkingCopy) -> None:
        lease = state.leases.get(self.partition, Lease(self.partition))
        state.add(replace(lease, checkpoint=self.checkpoint), self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHub(Transition):
    """Record the creation time of the hub whose positions the table contains. The author need not be a member.

    With `moved`, another hub may have been recorded before, because the same commit moves all positions to this hub."""

    created_ms: int
    moved: bool = False

    def rejection(self, state: WorkingCopy) -> str | None:
        if state.table is None:
            return "the table has no partitions yet"
        other = state.table.hub_created_ms not in (None, self.created_ms)
        return "the table contains positions of another event hub" if other and not self.moved else None

    def carry_out(self, state: WorkingCopy) -> None:
        assert state.table is not None
        if state.table.hub_created_ms not in (None, self.created_ms):  # the lags were measured in the other hub
            for partition in [*state.leases]:
                state.leases[partition] = replace(state.leases[partition], lag=None)
        state.table = replace(state.table, hub_created_ms=self.created_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLatest(Transition):
    """Record the meaning of `latest` at the group's first start: `latest_ms` by the hub's clock, and the exact `ends`
    at which never-read partitions start."""

    latest_ms: int
    ends: Mapping[str, Position] = field(default_factory=dict)

    def rejection(self, state: WorkingCopy) -> str | None:
        if state.table is None:
            return "the table has no partitions yet"
        return None if state.table.latest_ms is None else "the group has already started"

    def carry_out(self, state: WorkingCopy) -> None:
        assert state.table is not None
        state.table = replace(state.table, latest_ms=self.latest_ms)
        for partition, end in self.ends.items():
            lease = state.leases.get(partition)
            if lease is not None and lease.checkpoint is None:
                state.leases[partition] = replace(lease, checkpoint=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTransition(Transition):
    """A change of one lease. `epoch` is the epoch that the author read; a change of owner after that read invalidates
    the transition."""

    partition: str
    epoch: int

    def rejection(self, state: WorkingCopy) -> str | None:
        if fenced := state.fenced(self.by):
            return fenced
        lease = state.leases.get(self.partition)
        if lease is None:
            return f"partition {self.partition} is unknown"
        if lease.epoch != self.epoch:
            return f"epoch is {lease.epoch}, not {self.epoch}"
        return self.why_invalid(lease)

    def carry_out(self, state: WorkingCopy) -> None:
        state.leases[self.partition] = self.after(state.leases[self.partition])

    @abstractmethod
    def why_invalid(self, lease: Lease) -> str | None:
        """The reason why this transition is invalid for `lease`, apart from the epoch and the author; None if it is
        valid."""

    @abstractmethod
    def after(self, lease: Lease) -> Lease:
        """The lease after this transition."""

    def _owned_by_author(self, lease: Lease) -> str | None:
        return None if lease.owner == self.by.id else f"owned by {lease.owner}"

    def _given_to(self, lease: Lease, owner: str) -> Lease:
        return replace(
            lease,
            owner=owner,
            epoch=lease.epoch + 1,
            renewal=lease.renewal + 1,
            renewed_at_ms=self.at_ms,
            owned_since_ms=self.at_ms,
            handover=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(LeaseTransition):
    """Become the owner of a lease. If the lease has no checkpoint, reading begins at `starting_position`.

    `latest_ms` is the meaning of `latest` with which that position was resolved; None if it is irrelevant.
    """

    starting_position: Position | None = None
    latest_ms: int | None = None

    def rejection(self, state: WorkingCopy) -> str | None:
        known = state.table.latest_ms if state.table else None
        if None not in (known, self.latest_ms) and known != self.latest_ms:
            return "its starting position was not resolved with the group's `latest`"
        return LeaseTransition.rejection(self, state)

    def why_invalid(self, lease: Lease) -> str | None:
        unknown = lease.checkpoint is None and self.starting_position is None
        return "its starting position is unknown" if unknown else None

    def after(self, lease: Lease) -> Lease:
        return replace(self._given_to(lease, self.by.id), checkpoint=lease.checkpoint or self.starting_position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Take):
    """Take a lease that is unowned, expired, owned by an earlier process of the author, or overdue in a handover to the
    author. An author at its limit may claim only its own leases.

    `owned_since_ms` is when an earlier process of the author got the lease. If an unowned lease still has this value,
    nobody has owned it since, and the author's tenure continues.

    Evidence: `unchanged_counter` is the counter that did not change for the lease duration, so the lease expired.
    `overdue_handover` is a handover whose deadline passed, even if the owner still renews the lease.
    """

    unchanged_counter: tuple[int, int] | None = None
    overdue_handover: Handover | None = None
    owned_since_ms: int = 0

    def rejection(self, state: WorkingCopy) -> str | None:
        if reason := Take.rejection(self, state):
            return reason
        own = state.leases[self.partition].owner == self.by.id
        return None if own else state.full(self.by.id, self.partition)

    def why_invalid(self, lease: Lease) -> str | None:
        if reason := Take.why_invalid(self, lease):
            return reason
        if lease.owner in (None, self.by.id) or lease.counter == self.unchanged_counter:
            return None
        if (
            self.overdue_handover is not None
            and self.overdue_handover.to == self.by.id
            and self.overdue_handover == lease.handover
        ):
            return None
        return f"owned by {lease.owner}"

    def after(self, lease: Lease) -> Lease:
        given_back = lease.owner is None and 0 < lease.owned_since_ms == self.owned_since_ms
        since = lease.owned_since_ms if given_back or lease.owner == self.by.id else self.at_ms
        return replace(Take.after(self, lease), owned_since_ms=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steal(Take):
    """Take a live lease from its owner without a handover, as the Event Processor's strategies do. A lease whose owner
    is not an `ehbalance` member may have no checkpoint."""

    def rejection(self, state: WorkingCopy) -> str | None:
        return (
            LeaseTransition.rejection(self, state)
            or state.pinned_to_owner(state.leases[self.partition])
            or state.full(self.by.id, self.partition)
        )

    def why_invalid(self, lease: Lease) -> str | None:
        return "no other member owns it" if lease.owner in (None, self.by.id) else Take.why_invalid(self, lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew(LeaseTransition):
    """Renew an owned lease. A `load` or a `lag` that is not None replaces the previous one."""

    load: Load | None = None
    lag: Lag | None = None

    def why_invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        return lease.renewed(self.at_ms, lease.checkpoint, self.load or lease.load, self.lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defend(LeaseTransition):
    """Renew a lease after its owner won the race for it, so that no member challenges it for a while."""

    def why_invalid(self, lease: Lease) -> str | None:
        pending = f"a handover to {lease.handover.to} is pending" if lease.handover else None
        return self._owned_by_author(lease) or pending

    def after(self, lease: Lease) -> Lease:
        return replace(lease, defences=lease.defences + 1, renewal=lease.renewal + 1, renewed_at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(LeaseTransition):
    """Record that the sink has finished all events up to `position`.

    The transition is valid even after the author released the lease, until another member claims it, because a
    restarted query may find out late that its last batch finished. The epoch is sufficient evidence, because only one
    member ever owns a lease in an epoch."""

    position: Position
    load: Load | None = None
    lag: Lag | None = None

    def why_invalid(self, lease: Lease) -> str | None:
        if lease.owner is not None and lease.owner != self.by.id:
            return f"owned by {lease.owner}"
        if lease.checkpoint is not None and self.position.sequence_number < lease.checkpoint.sequence_number:
            return f"moves back from {lease.checkpoint.sequence_number} to {self.position.sequence_number}"
        return None

    def after(self, lease: Lease) -> Lease:
        if lease.owner is None:
            return replace(lease, checkpoint=self.position, stall_count=lease.stall_count_at(self.position))
        return lease.renewed(self.at_ms, self.position, self.load or lease.load, self.lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(LeaseTransition):
    """Continue at `position`, because the events at the checkpoint are lost and `failOnDataLoss` is false."""

    position: Position

    def why_invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        renewal = lease.renewal + 1
        return replace(lease, checkpoint=self.position, renewal=renewal, renewed_at_ms=self.at_ms, stall_count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(LeaseTransition):
    """Release a lease and keep its checkpoint. Unless `ends_tenure`, the author's next process may run an interrupted
    batch again with the partition."""

    ends_tenure: bool = False

    def why_invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        since = 0 if self.ends_tenure else lease.owned_since_ms
        return replace(lease, owner=None, handover=None, renewed_at_ms=self.at_ms, owned_since_ms=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Transition):
    """Release a lease whose partition has events but delivers none, on behalf of the owner `by.id`.

    The author is a task, which is fenced by `epoch` and `since_ms` of its range. The epoch rises, so the checkpoint of
    the incompletely read range will be rejected.
    """

    partition: str
    epoch: int
    since_ms: int = 0

    def rejection(self, state: WorkingCopy) -> str | None:
        lease = state.leases.get(self.partition)
        if lease is None:
            return f"partition {self.partition} is unknown"
        # Like a checkpoint, a stall is valid even after the owner released the lease.
        if lease.owner in (self.by.id, None) and lease.still_owned(self.epoch, self.since_ms):
            return None
        return f"owned by {lease.owner} in epoch {lease.epoch}"

    def carry_out(self, state: WorkingCopy) -> None:
        lease = state.leases[self.partition]
        state.leases[self.partition] = replace(
            lease,
            owner=None,
            epoch=lease.epoch + 1,
            renewed_at_ms=self.at_ms,
            owned_since_ms=0,  # ends the tenure, so that the next owner does not run the batch again
            handover=None,
            stall_count=lease.stall_count + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandover(LeaseTransition):
    """Request a handover to `to` within `timeout_ms`. The author has checked the minimum tenure on its own clock."""

    to: str
    timeout_ms: int

    def rejection(self, state: WorkingCopy) -> str | None:
        if not state.is_active(self.to):
            return f"{self.to} is not an active member"
        return (
            LeaseTransition.rejection(self, state)
            or state.pinned_to_owner(state.leases[self.partition])
            or state.full(self.to, self.partition)
        )

    def why_invalid(self, lease: Lease) -> str | None:
        if lease.owner in (None, self.to):
            return "no other member owns it"
        return f"a handover to {lease.handover.to} is pending" if lease.handover else None

    def after(self, lease: Lease) -> Lease:
        return replace(lease, handover=Handover(self.to, self.timeout_ms, self.at_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(LeaseTransition):
    """Hand the lease over as requested. The same commit first writes the owner's last `Checkpoint`."""

    def rejection(self, state: WorkingCopy) -> str | None:
        if reason := LeaseTransition.rejection(self, state):
            return reason
        handover = state.leases[self.partition].handover
        return None if handover and state.is_active(handover.to) else "the next owner is not active"

    def why_invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease) or (None if lease.handover else "no handover is pending")

    def after(self, lease: Lease) -> Lease:
        assert lease.handover is not None
        return self._given_to(lease, lease.handover.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHandover(LeaseTransition):
    """Cancel a handover because its next owner has left or should no longer get the lease."""

    def why_invalid(self, lease: Lease) -> str | None:
        return None if lease.handover else "no handover is pending"

    def after(self, lease: Lease) -> Lease:
        return replace(lease, handover=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransfer(LeaseTransition):
    """Remove an operator's transfer, because its minimum tenure has ended or its destination has left."""

    def why_invalid(self, lease: Lease) -> str | None:
        return None if lease.pin and lease.pin.transfer else "the partition has no transfer"

    def after(self, lease: Lease) -> Lease:
        return replace(lease, pin=None)
