"""One member's owned leases and its state of the group. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.group.changes import Advance, Heartbeat, Join, LeaseTransition, Outcome
from spark_ehbalance.group.durations import renewal_interval, short_outage
from spark_ehbalance.group.expiry import Observations, changed_rows
from spark_ehbalance.group.member.lease_duration import LeaseDuration
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Author, Lease, MemberState, QueryRecord, TableIdentity
from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.text import format_time, logger

_LOG = logger(__name__)

#: The longest time between two attempts to read the table, as a fraction of the lease duration: a pause of a sixth,
#: with jitter, and two requests that time out after a sixth each.
_MAX_READ_GAP = 2 / 3

#: The values of `renewed` and `lasts` for a member without leases.
_NEVER = (float("inf"), 0.0)


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of both clocks: monotonic seconds, and wall-clock milliseconds since 1970."""

    monotonic: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class OwnedLease:
    """An owned lease. `renewed` is the monotonic time of the last renewal, from which the lease is valid for `lasts`
    seconds. No new batch is planned with a lease that has `handover_pending`. `since_ms` is the lease's
    `owned_since_ms`."""

    epoch: int
    checkpoint: Position
    renewed: float
    lasts: float
    handover_pending: bool = False
    since_ms: int = 0
    seek_epoch: int = 0
    stall_count: int = 0

    @property
    def ends(self) -> float:
        """The monotonic time of expiry."""
        return self.renewed + self.lasts


class ResumePoint(NamedTuple):
    """The position at which an earlier process of the member was reading a partition: the `next` sequence number, and
    the lease's `owned_since_ms` (0: unknown) and epoch."""

    next: int
    since_ms: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReadState:
    """The result of the last read. `drained`: an operator or this member set its state to leaving.

    Times are monotonic: `at` is the end of the read, `begun` is its start, `before` is the start of the previous read,
    and `changed_at` is the first read of the current version. `unwritable_at` is the last read at which the table had
    been unchanged for half a lease duration. Every live member tries to write within a third of it, so the table was
    unwritable, and no lease expires. `tried` is the time of the last attempt to read, and `failed` is true if that
    attempt failed.

    A process may be suspended during a read, so the result is only valid as of the read's start.
    """

    snapshot: Snapshot | None = None
    drained: bool = False
    at: float = float("-inf")
    begun: float = float("-inf")
    before: float = float("-inf")
    changed_at: float = float("inf")
    unwritable_at: float = float("-inf")
    tried: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class CommitState:
    """The result of this process's commits. `joined` is `Member.joined` (None: the process has not joined); `start` and
    `begun` are the fields of `QueryRecord`. `heartbeat` is the monotonic time of the last heartbeat, and `at` is the
    monotonic time at which the last effective commit began. `failing`: the last attempt failed.
    """

    joined: int | None = None
    #: Partitions and epochs of the leases that this process must still claim, because another process of this member or
    #: a seek changed them between its read and its join. With the same epoch, the hub could not fence that process.
    unclaimed: frozenset[tuple[str, int]] = frozenset()
    start: int = 0
    begun: int = 0
    heartbeat: float = float("-inf")
    at: float = float("-inf")
    failing: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """The group's `leases`, `table` (None before the first partition) and observations, as of the last read or
    commit."""

    leases: Mapping[str, Lease] = field(default_factory=dict)
    table: TableIdentity | None = None
    observations: Observations = field(default_factory=Observations)


@dataclass(frozen=True)
class OwnedLeases:
    """The owned `leases`, and the same leases `by_partition`."""

    leases: Sequence[Lease] = ()
    by_partition: Mapping[str, OwnedLease] = field(default_factory=dict)

    @cached_property
    def first_due(self) -> tuple[float, float]:
        """`renewed` and `lasts` of the lease that must be renewed first."""
        return min(((lease.renewed, lease.lasts) for lease in self.by_partition.values()), key=_due, default=_NEVER)


@dataclass(frozen=True)
class Membership:
    """One process's state as a member. `after_read` returns the next state after a read of the table, and
    `after_commit` the next state after a commit.

    `resume` are the partitions that an earlier process of this member was reading. Like the member's leases in the
    table, they are claimed at once if they are unowned and reading would continue at the same position. `duration`
    contains the lease durations in force.
    """

    author: Author
    settings: Settings
    resume: Mapping[str, ResumePoint]
    duration: LeaseDuration
    read_state: ReadState = ReadState()
    commit_state: CommitState = CommitState()
    group_state: GroupState = field(default_factory=GroupState)
    owned_leases: OwnedLeases = field(default_factory=OwnedLeases)

    @classmethod
    def initial(
        cls,
        author: Author,
        settings: Settings,
        resume: Mapping[str, ResumePoint] | None = None,
        checked: Snapshot | None = None,
    ) -> Membership:
        """The state before the first read. `checked` is the snapshot that was compared with the query's checkpoint."""
        duration = LeaseDuration.initial(author, settings.lease_duration)
        # An empty table gets its id when its first partitions are added.
        state = GroupState(checked.leases, checked.table) if checked and checked.leases else GroupState()
        return cls(author, settings, resume or {}, duration, group_state=state)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the last read. A read must have succeeded before."""
        assert self.read_state.snapshot is not None, "there was no read yet"
        return self.read_state.snapshot

    @property
    def joined(self) -> bool:
        """Whether this process is a member."""
        return self.commit_state.joined is not None

    @property
    def owned(self) -> Mapping[str, OwnedLease]:
        """The owned leases by partition."""
        return self.owned_leases.by_partition

    @property
    def unclaimed(self) -> list[Lease]:
        """The leases in `CommitState.unclaimed` that have not changed since."""
        unclaimed = self.commit_state.unclaimed
        leases = self.resumable(self.group_state.leases) if unclaimed else []
        return [lease for lease in leases if (lease.partition, lease.epoch) in unclaimed]

    def resumable(self, leases: Mapping[str, Lease]) -> list[Lease]:
        """The leases of an earlier process of this member. The leases that it was reading come first."""
        owner, resumable = self.author.id, []
        candidates = {p for p, lease in leases.items() if lease.owner == owner} | (self.resume.keys() & leases.keys())
        for partition in sorted(candidates, key=partition_order):
            lease, earlier = leases[partition], self.earlier(partition)
            sought = earlier.epoch < lease.seek_epoch and 0 < earlier.since_ms == lease.owned_since_ms
            reading = sought or (lease.checkpoint is not None and earlier.next == lease.checkpoint.next)
            if lease.owner == owner or (lease.owner is None and reading):
                resumable.append((not reading, lease))
        return [lease for _, lease in sorted(resumable, key=lambda entry: entry[0])]

    def _continues(self, lease: Lease) -> bool:
        """Whether this process could run an interrupted batch again with the lease: no other member has owned it since,
        and this member's tenure has not ended."""
        earlier = self.earlier(lease.partition)
        unbroken = lease.epoch <= earlier.epoch or 0 < earlier.since_ms == lease.owned_since_ms
        return unbroken or lease.owner == self.author.id

    def earlier(self, partition: str) -> ResumePoint:
        """Where an earlier process was reading `partition`."""
        return self.resume.get(partition, ResumePoint(-1))

    # --- a read of the table -----------------------------------------------------------------------------------

    def after_read(self, snapshot: Snapshot, now: Clocks, query: QueryState, begun: float | None = None) -> Membership:
        """The state after a read that began at the monotonic time `begun` (None: just now).

        Raises `FencedError` if a later process uses this member's id, and `DataLossError` if the table was replaced or
        rolled back, or if another process continued the query before this process joined.
        """
        self._check_table(snapshot, query)
        member = self._with_durations(snapshot)._with_read(snapshot, now, now.monotonic if begun is None else begun)
        if not self.joined:
            return member
        self._check_fence(snapshot)
        row, record = snapshot.members.get(self.author.id), self._record(snapshot)
        drained = row is not None and row.state is MemberState.LEAVING
        member = replace(member, read_state=replace(member.read_state, drained=drained))
        if record is not None and record.run == self.author.incarnation:  # an unanswered commit may have joined again
            member = replace(member, commit_state=replace(member.commit_state, start=record.start))
        return member._with_leases(snapshot, now, self.duration.own)

    def _check_table(self, snapshot: Snapshot, query: QueryState) -> None:
        table, found, record = self.group_state.table, snapshot.table, self._record(snapshot)
        if not self.settings.capabilities.members:
            return
        if table is not None and found is not None and found.id != table.id:
            raise DataLossError("EHB_LEASE_TABLE_REPLACED", known=table.id, found=found.id)
        if not self.joined and record is not None and not record.is_continued_by(query.begun, query.planner):
            raise stale_checkpoint(query.begun, record)
        for _, lease, known in changed_rows(snapshot.leases, self.group_state.leases):
            if lease is None or lease.epoch < known.epoch:
                what, epoch = f"epoch of partition {known.partition}", lease.epoch if lease else "missing"
                raise DataLossError("EHB_LEASE_TABLE_STALE", what=what, known=known.epoch, found=epoch)
            if (lease.owner, lease.epoch) == (self.author.id, known.epoch) and lease.partition not in query.resets:
                at, was = lease.checkpoint, known.checkpoint  # within an epoch, only the owner's reset moves it back
                if at and was and at.sequence_number < was.sequence_number:
                    what = f"position of partition {known.partition}"
                    raise DataLossError("EHB_LEASE_TABLE_STALE", what=what, known=was.next, found=at.next)

    def _check_fence(self, snapshot: Snapshot) -> None:
        row, record, own = snapshot.members.get(self.author.id), self._record(snapshot), self.author.incarnation
        # This process has left; the outcome of its last commit was unknown.
        left = record is not None and not record.run and record.start == self.commit_state.start
        by_run = record is not None and not left and record.run != own
        if not by_run and (row is None or row.incarnation == own):
            return
        host = record.host if by_run and record else row.host if row else ""
        raise FencedError("EHB_FENCED", host=host or "an unknown host", owner=self.author.id)

    def _record(self, snapshot: Snapshot) -> QueryRecord | None:
        """This query's record."""
        return snapshot.queries.get(self.settings.lineage)

    @property
    def read_due(self) -> float:
        """The monotonic time of the next mandatory read. Reads are frequent enough to detect the expiry of any member,
        including members with a shorter lease duration than the group's."""
        return (
            float("inf")
            if self.read_state.snapshot is None
            else self.read_state.tried + renewal_interval(self.duration.shortest)
        )

    def read_failed(self, now: float, begun: float | None = None) -> Membership:
        """The state after a failed read that began at the monotonic time `begun` (None: just now)."""
        suspended = begun is not None and now - begun >= self._between_tries  # the store may be available again
        return replace(self, read_state=replace(self.read_state, tried=now, failed=not suspended))

    def _with_read(self, snapshot: Snapshot, now: Clocks, begun: float) -> Membership:
        """The state with the read's result and the observations that follow."""
        last, at, observations = self.read_state, now.monotonic, self.group_state.observations
        if self._writes_failed_for_long(now) or at - last.at > self.duration.shortest / 2:
            # After a long time without a read, other members may have renewed unobserved; after a long time without a
            # write, they may have been unable to write as well. All members get a full lease duration again.
            observations = observations.restarted()
        changed = last.snapshot is None or last.snapshot.version != snapshot.version
        unchanged_for_long = not changed and begun - last.changed_at > self.duration.durations.longest / 2
        read_state = replace(
            last,
            snapshot=snapshot,
            at=at,
            begun=begun,
            before=last.begun,
            changed_at=at if changed else last.changed_at,
            unwritable_at=begun if unchanged_for_long else last.unwritable_at,
            tried=at,
            failed=False,
        )
        return replace(
            self,
            read_state=read_state,
            group_state=replace(self.group_state, observations=observations.updated(snapshot, at)),
        )

    # --- the result of a commit --------------------------------------------------------------------------------

    def commit_failed(self) -> Membership:
        """The state after a failed write."""
        return replace(self, commit_state=replace(self.commit_state, failing=True))

    def after_commit(self, outcome: Outcome, now: Clocks, ended: float, query: QueryState) -> Membership:
        """The state after a commit that `ended` at that monotonic time. Raises the same errors as `after_read`.

        `now` is a time before the commit, so that this member never relies on a lease for longer than other members do.
        For the same reason, other members' writes before the commit count as observed at its end.
        """
        snapshot = outcome.after
        if snapshot is self.read_state.snapshot and not outcome.accepted and not outcome.rejected:
            return self
        self._check_table(snapshot, query)
        if self.joined:
            self._check_fence(snapshot)
        member = self if outcome.seconds is None else replace(self, duration=self.duration.with_commit(outcome.seconds))
        member, observations = member._with_durations(snapshot), self.group_state.observations
        if not member._writes_failed_for_long(now):
            observations = observations.updated(snapshot, ended)
        elif outcome.accepted:
            # Other members' durations apply from the next read, because by then all of them can have read this commit.
            observations = observations.restarted()
        state, written = replace(self.group_state, observations=observations), self._written(outcome, now.monotonic)
        member = replace(member, group_state=state, commit_state=written)
        return member._with_leases(snapshot, now, self.duration.own, _renewed(outcome))

    def _written(self, outcome: Outcome, at: float) -> CommitState:
        written, snapshot = self.commit_state, outcome.after
        row, record = snapshot.members.get(self.author.id), self._record(snapshot)
        if row is not None and row.incarnation == self.author.incarnation:
            if not self.joined and self.settings.capabilities.epochs:
                own, claimed = filter(self._continues, self.resumable(snapshot.leases)), _renewed(outcome)
                unclaimed = frozenset((lease.partition, lease.epoch) for lease in own if lease.partition not in claimed)
                written = replace(written, unclaimed=unclaimed)
            written = replace(written, joined=row.joined)
            written = replace(written, start=record.start, begun=record.begun) if record else written
        if any(isinstance(transition, (Join, Heartbeat)) for transition in outcome.accepted):
            written = replace(written, heartbeat=at)
        return replace(written, at=at, failing=False) if outcome.accepted else written

    # --- derived from both -------------------------------------------------------------------------------------

    def renewal_due(self, ahead: float = 0.0) -> float:
        """The monotonic time of the next renewal, which is early by the fraction `ahead` of its interval."""
        renewed, lasts = min(self.owned_leases.first_due, (self.commit_state.heartbeat, self.duration.own), key=_due)
        return renewed + (1 - ahead) * self.settings.renewal_part * lasts

    def still_valid(self, holdings: Mapping[str, OwnedLease], now: float) -> Mapping[str, OwnedLease]:
        """The leases among `holdings` that have not expired at monotonic time `now`.

        All of them count as valid if the table was unwritable until recently, because other members then wait for a
        full lease duration again. They also count as valid while the store is unavailable, because nobody can take them
        in the table, and the hub's owner levels prevent two readers at the same time. A process that was suspended owns
        nothing until its next read.
        """
        unwritable = now - self.read_state.unwritable_at < renewal_interval(self.duration.own)
        failed = self.read_state.failed and now - self.read_state.tried < self._between_tries
        if self.settings.alone or unwritable or failed:
            return holdings
        return {p: holding for p, holding in holdings.items() if now < holding.ends}

    @property
    def _between_tries(self) -> float:
        """The time without an attempt to read the table, in seconds, after which this process counts as suspended."""
        return max(2 * self.settings.balance_interval, _MAX_READ_GAP * self.duration.own)

    def in_handover(self, snapshot: Snapshot) -> bool:
        """Whether a handover from or to this member is pending."""
        me, leases = self.author.id, snapshot.leases
        return any(me in (leases[p].owner, handover.to) for p, handover in snapshot.ownership.pending.items())

    def join(self, at_ms: int, query: QueryState) -> list[Join]:
        """The transition by which this process becomes a member, unless it is a member in the last snapshot."""
        settings, known = self.settings, not self.settings.lineage or self._record(self.snapshot) is not None
        if self.joined and self.author.id in self.snapshot.members and known:  # as this process: see `_check_fence`
            return []
        return [
            Join(
                by=self.author,
                at_ms=at_ms,
                host=settings.host,
                max_owned=settings.max_owned,
                strategy=settings.strategy_name,
                lease_duration_ms=round(self.duration.group * 1000),
                lineage=settings.lineage,
                batch=query.batch,
                begun=query.begun,
                planner=query.planner,
                again=self.joined,
            )
        ]

    def advance(self, at_ms: int, query: QueryState) -> list[Advance]:
        """The transition that records the finished and the begun batch, unless the table contains them already."""
        record, batch, begun, planner = self._record(self.snapshot), query.batch, query.begun, query.planner
        if not self.joined or not record:
            return []
        known = record.begun > begun or (record.begun, record.planner) == (begun, planner)
        if known and record.batch >= batch:
            return []
        return [Advance(by=self.author, at_ms=at_ms, lineage=record.lineage, batch=batch, begun=begun, planner=planner)]

    def heartbeat(self, at_ms: int, query: QueryState) -> Heartbeat:
        """The heartbeat. It contains the group's lease duration, which applies to this member from then on."""
        return Heartbeat(
            by=self.author,
            at_ms=at_ms,
            load=query.load,
            asked_ms=query.asked_ms,
            left_out=query.left_out,
            lease_duration_ms=round(self.duration.group * 1000),
            commit_ms=self.duration.commit_ms,
        )

    def _with_durations(self, snapshot: Snapshot) -> Membership:
        """The state with the lease durations of `snapshot`."""
        duration = self.duration.updated(snapshot)
        if duration.own >= self.duration.own:
            return replace(self, duration=duration)
        holdings = {p: replace(lease, lasts=min(lease.lasts, duration.own)) for p, lease in self.owned.items()}
        return replace(self, duration=duration, owned_leases=replace(self.owned_leases, by_partition=holdings))

    def _writes_failed_for_long(self, now: Clocks) -> bool:
        """Whether writes have failed for so long that other live members may have been unable to write as well."""
        if not self.commit_state.failing or self.read_state.snapshot is None:
            return False
        return now.monotonic - self.commit_state.at > short_outage(self.duration.shortest)

    def _with_leases(
        self, snapshot: Snapshot, now: Clocks, last_duration: float, renewed: Set[str] | None = None
    ) -> Membership:
        """The state with the leases owned in `snapshot`; `renewed` are partitions renewed by a commit (None: a read).

        Until it is renewed, a new lease expires after `last_duration`, this member's lease duration as of the last
        snapshot, because other members may have read no later one.
        """
        # In a blob store, the claim of an earlier process may have been written without its position.
        own = [lease for lease in snapshot.owned_by(self.author.id) if lease.checkpoint is not None]
        seen, held = self.group_state.leases, self.owned
        if unclaimed := self.commit_state.unclaimed:
            own = [lease for lease in own if (lease.partition, lease.epoch) not in unclaimed]
        state = replace(self.group_state, leases=snapshot.leases, table=snapshot.table or self.group_state.table)
        if own == self.owned_leases.leases and not renewed:
            return replace(self, group_state=state)
        # A lease that another member handed over is valid from the handover, which was after the last read that did not
        # contain the lease as owned.
        since = self.read_state.before if renewed is None else self.read_state.begun
        holdings = {}
        for lease in own:
            before, again = held.get(lease.partition), renewed is not None and lease.partition in renewed
            if before is not None and not again and seen.get(lease.partition) is lease:
                holdings[lease.partition] = before
                continue
            assert lease.checkpoint is not None
            same_epoch = before is not None and before.epoch == lease.epoch
            renewed_at, lasts = since, min(last_duration, self.duration.own)
            if again:
                renewed_at, lasts = now.monotonic, self.duration.own
            if before is not None and same_epoch and not again:
                renewed_at, lasts = before.renewed, before.lasts
            if renewed is None and before is not None and not same_epoch:
                _LOG.info(
                    "Continuing after a %s. partition=%s next=%d epoch=%d",
                    "seek" if lease.seek_epoch == lease.epoch else "foreign change of the lease",
                    lease.partition, lease.checkpoint.next, lease.epoch,
                )  # fmt: skip
            pending = lease.handover is not None
            counted = lease.owned_since_ms, lease.seek_epoch, lease.stall_count
            holdings[lease.partition] = OwnedLease(lease.epoch, lease.checkpoint, renewed_at, lasts, pending, *counted)
        for partition in sorted(held.keys() - holdings.keys()):
            lease_now = snapshot.leases.get(partition)  # a new table has none
            _LOG.info("Partition no longer owned. partition=%s owner=%s", partition, lease_now and lease_now.owner)
        return replace(self, group_state=state, owned_leases=OwnedLeases(own, holdings))


def stale_checkpoint(batch: int, record: QueryRecord) -> DataLossError:
    """The error for a checkpoint that ends with `batch` although the query's `record` contradicts it."""
    return DataLossError(
        "EHB_CHECKPOINT_STALE",
        batch=batch,
        begun=record.begun,
        at=format_time(record.at_ms),
        owner=record.owner,
        host=record.host or "an unknown host",
    )


def _renewed(outcome: Outcome) -> frozenset[str]:
    """The partitions renewed by `outcome`."""
    before, after = outcome.before.leases, outcome.after.leases
    written = {transition.partition for transition in outcome.accepted if isinstance(transition, LeaseTransition)}
    return frozenset(p for p in written if p not in before or before[p].counter != after[p].counter)


def _due(times: tuple[float, float]) -> float:
    renewed, lasts = times
    return renewed + renewal_interval(lasts)
