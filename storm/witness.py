"""Checks the invariants at every commit to the lease table, at every plan, and at every write."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.exactly_once.marks import SequenceRange
from spark_ehbalance.group.changes import (
    Checkpoint,
    Claim,
    Drain,
    HandOver,
    Join,
    Outcome,
    Release,
    Reset,
    Stall,
    Steal,
    Transition,
)
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.member.protocol import Fail
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.batch_planning import position_in_epoch
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.positions import query_positions
from storm.process import DRIFT, Process
from storm.sinks import Content, NumberedSink, OnceSink, Rows

if TYPE_CHECKING:
    from storm.world import World


#: Seconds within which a process must have noticed an outage.
_OUTAGE_TIMEOUT = 30.0


class Violation(AssertionError):
    """The invariant `name` is violated for `partition`, or for the whole group."""

    def __init__(self, name: str, what: str, partition: str = "") -> None:
        super().__init__(name, what, partition)
        self.name, self.what, self.partition = name, what, partition

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.name, self.partition and f"partition {self.partition}", self.what)))


class Loss(NamedTuple):
    """The `kind` of change by which an owner lost a partition, and the table's `version` after it."""

    kind: str
    version: int


def kind_of_change(old: Lease, lease: Lease, transitions: Iterable[Transition]) -> str:
    """The kind of change from the `old` lease to the new `lease`, which has a higher epoch."""
    for transition in transitions:
        if isinstance(transition, (Steal, Seek, Stall)):
            return type(transition).__name__.lower()
        if isinstance(transition, Claim):
            if old.owner in (None, lease.owner):
                return "free" if old.owner is None else "restart"
            return "expiry" if transition.unchanged_counter == old.counter else "overdue handover"
    return "handover"


class Witness:
    def __init__(self, world: World) -> None:
        self._world = world
        self.changed_at = 0.0
        self._renewals: dict[tuple[str, int], tuple[float, float]] = {}  # (partition, epoch) → last renewal, duration
        self._losses: dict[tuple[str, int], Loss] = {}  # by partition and lost epoch
        self._sought: dict[str, int] = {}  # partition → the epoch after its last seek
        self._ever_sought: set[str] = set()
        self._replaced = 0  # version in which the table was replaced
        self._takers: dict[str, str] = {}  # partition → the last process to get it
        self._begin: dict[str, int] = {}  # where reading began, or where it continued after the last seek
        self._written = Content()  # what all sinks have stored since then
        self._ever_written = Content()
        self._reported_losses: dict[str, int] = {}  # the position up to which lost events were reported
        self._replayed: set[tuple[int, str, int]] = set()  # (sink, partition, end) of replayed ranges
        self._planned: defaultdict[tuple[str, int], int] = defaultdict(int)  # (partition, epoch) → end of its ranges
        self._readers: dict[tuple[str, int], Process] = {}  # (partition, epoch) → the process that read it
        self._joined: dict[str, str] = {}  # lineage → the process that joined last
        self._drained: dict[str, bool] = {}  # members that an operator has drained → whether that was undone

    # --- the lease table -----------------------------------------------------------------------------------------

    def check_commit(self, outcome: Outcome) -> None:
        """Check a commit to the lease table."""
        before, after, self.changed_at = outcome.before, outcome.after, self._world.engine.now
        by_partition: dict[str, list[Transition]] = defaultdict(list)
        for transition in outcome.accepted:
            by_partition[getattr(transition, "partition", "")].append(transition)
            if isinstance(transition, (Claim, Steal)):
                self._takers[transition.partition] = transition.by.incarnation
            elif isinstance(transition, HandOver):
                owner = after.members.get(str(after.leases[transition.partition].owner))
                self._takers[transition.partition] = owner.incarnation if owner else ""
            elif isinstance(transition, Drain) and transition.by.id != transition.member:
                self._drained[transition.member] = transition.undo
        for p, lease in after.leases.items():
            if (old := before.leases.get(p, Lease(p))) is not lease:
                sent_at = self.changed_at - (outcome.seconds or 0.0)
                self._check_lease_change(old, lease, by_partition[p], after, sent_at)
        for transition in outcome.accepted:
            if isinstance(transition, Join):
                self._check_order(transition)
            row = after.members.get(transition.by.id) or before.members.get(transition.by.id)
            if isinstance(transition, Checkpoint) and (row is None or row.incarnation != transition.by.incarnation):
                by = transition.by.incarnation
                raise Violation("fenced", f"the checkpoint of {by} was accepted", transition.partition)
            if self._world.tampered:
                continue
            if isinstance(transition, (HandOver, Release)) and self._world.plan.max_stall is None:
                self._check_release(transition, after.leases[transition.partition])
        for lineage, record in after.queries.items():
            known = before.queries.get(lineage, record)
            if record.batch < known.batch or record.begun < known.begun:
                raise Violation("record", f"{lineage} was at {known}, and then at {record}")
        for id, row in after.members.items():
            # Partitions of an earlier process of the member are released by the next commit.
            own = [p for p in after.ownership.owned.get(id, ()) if self._takers.get(p) in (None, row.incarnation)]
            if row.max_owned is not None and len(own) > row.max_owned and not self._world.tampered:
                raise Violation("limit", f"{id} owns more than maxPartitionsOwned={row.max_owned}")
        if after.ownership is not before.ownership:
            for process in self._world.running():
                self.check(process, process.may_plan())

    def _check_order(self, join: Join) -> None:
        """Check that a process that knows that it has joined does not join again after a later one of its query."""
        by, last = join.by, self._joined.get(join.lineage)
        again = any(process.author == by and process.joined for process in self._world.processes())
        if again and last not in (None, by.incarnation):
            raise Violation("fenced", f"{by.incarnation} has joined again, although {last} had joined after it")
        self._joined[join.lineage] = by.incarnation

    def _check_release(self, transition: HandOver | Release, lease: Lease) -> None:
        """Check that a running query does not release a partition of its batch in flight, and that it hands a partition
        over only after its last batch with it."""
        p, epoch = transition.partition, transition.epoch
        for process in self._world.running():
            if process.author != transition.by or process.stopping:
                continue
            if isinstance(transition, Release) and not (process.member.leaving or process.plan.max_owned):
                raise Violation("planned move", f"{process.author.incarnation} releases it without a reason", p)
            if process.reading.get(p) == epoch:
                raise Violation("planned move", f"{process.author.incarnation} releases it during its batch", p)
            planned, next = self._planned[p, epoch], lease.checkpoint.next if lease.checkpoint else 0
            if isinstance(transition, HandOver) and next < planned:
                raise Violation("planned move", f"events {next} to {planned - 1} will be read twice", p)

    def _check_lease_change(
        self, old: Lease, lease: Lease, transitions: Iterable[Transition], after: Snapshot, sent_at: float
    ) -> None:
        p, was, checkpoint, world = lease.partition, old.checkpoint, lease.checkpoint, self._world
        begin = world.hub.partitions[p].begin
        for transition in transitions:
            if isinstance(transition, Seek):
                self._sought[p], self._begin[p] = lease.epoch, transition.position.next
                self._ever_sought.add(p)
                self._written.extents[p] = []
                was = None
            elif isinstance(transition, Reset):
                was = None
            elif isinstance(transition, Checkpoint) and transition.epoch != old.epoch:
                raise Violation("fenced", f"a checkpoint of epoch {transition.epoch} accepted in {old.epoch}", p)
        if lease.epoch < old.epoch or (lease.epoch == old.epoch and lease.owner not in (None, old.owner)):
            raise Violation("epoch", f"{old.owner} has epoch {old.epoch}, and then {lease.owner} {lease.epoch}", p)
        if was and (checkpoint is None or checkpoint.next < was.next):
            raise Violation("checkpoint", f"falls from {was.next} to {checkpoint and checkpoint.next}", p)
        if old.checkpoint is None and checkpoint is not None and checkpoint.next <= begin:
            self._begin[p] = checkpoint.next
        if checkpoint is not None and world.is_of_hub(after) and checkpoint.next > (covered := self._covered_end(p)):
            raise Violation("skipped", f"events {covered} to {checkpoint.next - 1} are checkpointed and in no sink", p)
        if lease.owner is not None and lease.counter != old.counter:
            self._renewals[p, lease.epoch] = world.engine.now, self._lease_duration(lease.owner)
        if lease.epoch > old.epoch:
            kind = kind_of_change(old, lease, transitions)
            taker, duration = after.members.get(lease.owner or ""), self._lease_duration(old.owner or "")
            if kind == "expiry" and taker and not world.tampered and self._was_blind(taker, duration, sent_at):
                raise Violation("expiry", f"{lease.owner} declares {old.owner} dead without evidence", p)
            for epoch in range(old.epoch, lease.epoch):
                self._losses[p, epoch] = Loss(kind, after.version)
            at = checkpoint.next if checkpoint else None
            world.note(f"{old.owner} → {lease.owner} by {kind}, epoch {lease.epoch}, checkpoint {at}", p)
        elif lease.owner != old.owner or lease.handover != old.handover:
            to = lease.handover and lease.handover.to
            world.note(f"owner {lease.owner}, epoch {lease.epoch}, handover to {to}", p)

    def _was_blind(self, taker: Member, duration: float, sent_at: float) -> bool:
        """Whether `taker` failed to read or write the table at some time within the last `duration` seconds before
        `sent_at`."""
        return any(
            sent_at - duration * (1 - 2 * DRIFT) < blind_at <= sent_at
            for process in self._world.processes()
            if process.author.incarnation == taker.incarnation
            for blind_at in process.blind_at
        )

    def _lease_duration(self, member: str) -> float:
        """The lease duration by which others judge `member`, in seconds."""
        snapshot = self._world.store.snapshot
        row = snapshot.members.get(member)
        own_ms = (row and row.lease_duration_ms) or snapshot.lease_duration_ms
        return self._world.plan.lease_duration if own_ms is None else own_ms / 1000

    @property
    def longest_duration(self) -> float:
        """The longest lease duration of the members, in seconds."""
        return max(map(self._lease_duration, [*self._world.store.snapshot.members] or [""]))

    def reset(self) -> None:
        """Adopt a table that was replaced. Epochs can repeat in it."""
        leases, now = self._world.store.snapshot.leases, self._world.engine.now
        self._replaced = self._world.store.snapshot.version
        for known in (self._losses, self._readers, self._planned, self._takers, self._sought, self._joined):
            known.clear()
        self._renewals = {
            (p, x.epoch): (now, self._lease_duration(x.owner)) for p, x in leases.items() if x.owner is not None
        }
        for p in self._ever_sought:  # the table can be older than the seek
            self._written.extents[p] = [*self._ever_written.extents.get(p, ())]
            self._begin.pop(p, None)
            if p in leases and (checkpoint := leases[p].checkpoint):
                self._begin[p] = checkpoint.next
        for p, lease in leases.items() if self._world.is_of_hub(self._world.store.snapshot) else ():
            if lease.checkpoint is not None and lease.checkpoint.next > (covered := self._covered_end(p)):
                what = f"events {covered} to {lease.checkpoint.next - 1} are in no sink: the table begins after them"
                raise Violation("skipped", what, p)

    def forget_hub(self) -> None:
        """Forget all events of the earlier hub."""
        self._written, self._ever_written = Content(), Content()
        for known in (
            self._begin,
            self._reported_losses,
            self._replayed,
            self._sought,
            self._ever_sought,
            self._planned,
        ):
            known.clear()

    # --- processes -----------------------------------------------------------------------------------------------

    def record_read(self, process: Process, snapshot: Snapshot) -> None:
        """Record that `process` read the table."""
        now, member = self._world.engine.now, process.member
        process.known_version = max(process.known_version, snapshot.version)
        # The durations that count are those of the table that was read: a slow store has raised them.
        if now - process.read_at > member._member._with_durations(snapshot).duration.shortest / 2:
            process.blind_at.append(now)
        process.read_at = now

    def record_failed_write(self, process: Process) -> None:
        """Record a failed commit of `process`."""
        now = self._world.engine.now
        if now - process.wrote_at > process.member._member.duration.shortest / 2:
            process.blind_at.append(now)

    def check_membership(self, process: Process, snapshot: Snapshot, outputs: Sequence[object]) -> None:
        """Check that a fenced `process` stops after reading the table."""
        row, own = snapshot.members.get(process.plan.owner), process.author.incarnation
        continues = not (self._world.tampered or any(isinstance(output, Fail) for output in outputs))
        if row and row.incarnation != own and continues:
            raise Violation("fenced", f"{own} continues after it has read that {row.incarnation} has joined")

    def check(self, process: Process, epochs: Mapping[str, int]) -> None:
        """Check that `process` owns the partitions in `epochs`, or cannot know yet that it has lost them."""
        if not self._continues(process):
            return
        snapshot, now = self._world.store.snapshot, self._world.engine.now
        for p, epoch in epochs.items():
            renewed, duration = self._renewals[p, epoch]
            who = process.author.incarnation
            if now - renewed > duration * (1 + 2 * DRIFT) and not self._in_safe_mode(process):
                what = f"{who} plans {now - renewed:.3f} s after its last renewal"
                raise Violation("two planners", f"{what}, with a lease duration of {duration:g} s", p)
            if (loss := self._losses.get((p, epoch))) is None:
                continue
            owner = snapshot.leases[p].owner
            what = f"{owner} owns it by {loss.kind}, but {who} may plan it with epoch {epoch}"
            if process.known_version >= loss.version:
                raise Violation("two planners", f"{what}, though it has read that", p)
            forced = owner in (None, process.plan.owner) or loss.kind not in ("expiry", "free", "handover")
            row = snapshot.members.get(process.plan.owner)
            # Another process of the query may have joined, and released the partition.
            fenced = process.query.had_twins and (row is None or row.incarnation != who)
            if not (forced or fenced) and not self._in_safe_mode(process):
                raise Violation("two planners", what, p)

    def _continues(self, process: Process) -> bool:
        """Whether `process` runs, and the table was not replaced."""
        return process.is_awake and not process.stopping and process.error is None and not self._world.tampered

    def _in_safe_mode(self, process: Process) -> bool:
        """Whether the table is unavailable to `process`, or was recently unwritable for everybody."""
        now, longest = self._world.engine.now, max(self.longest_duration, self._lease_duration("")) * (1 + 2 * DRIFT)
        away = max(4 * self._world.plan.balance_interval * (1 + 2 * DRIFT), 0.7 * longest)
        return now - process.unreachable_at < away or now - process.unwritable_at < longest / 3

    def check_error(self, process: Process, error: Exception) -> None:
        """Check that the `error` with which `process` ends has a cause."""
        if isinstance(error, FencedError) and not (process.query.had_twins or self._world.tampered):
            raise Violation(
                "errors", f"{process.author.incarnation} was fenced although no later process exists: {error}"
            )
        if isinstance(error, DataLossError):
            if error.condition != "EHB_EVENTS_LOST":
                if not self._world.remedy(process, error.condition):
                    raise Violation("errors", f"{process.author.incarnation} cannot continue: {error}")
                return
            for p in re.findall(r"(?i)partition (\d+): ", str(error)):
                self.record_reported_loss(process, p, self._world.hub.partitions[p].begin)
            process.query.fails_on_loss = False  # this is the error's remedy

    def record_reported_loss(self, process: Process, partition: str, end: int) -> None:
        """Check and record a report that the events before `end` are lost."""
        begin = self._world.hub.partitions[partition].begin
        if process.is_of_another_hub:
            return
        if end > begin:
            raise Violation("errors", f"events up to {end - 1} are retained, but reported lost", partition)
        process.note(f"reports that the events up to {end - 1} are lost", partition)
        self.record_loss(partition, end)

    def record_loss(self, partition: str, end: int) -> None:
        """Record that the loss of the events before `end` has been reported."""
        self._reported_losses[partition] = max(end, self._reported_losses.get(partition, 0))

    def check_outage(self, process: Process) -> None:
        """Check that `process` keeps reading its owned partitions while the table is unavailable to everybody."""
        began = self._world.outage_since
        if began is None or process.engine is None or not self._continues(process):
            return
        # With a shorter duration than its own in force, its requests time out so late that it counts as suspended.
        if process.plan.lease_duration > process.member._member.duration.own:
            return
        awake_since = max(began, process.suspended_until, process.planner_suspended_until)
        if self._world.engine.now - awake_since > _OUTAGE_TIMEOUT:
            held = process.member.plannable()
            for p in held.keys() - process.may_plan().keys():
                renewed, duration = self._renewals[p, held[p].epoch]
                if renewed + duration * (1 - 2 * DRIFT) > began:  # otherwise it had stopped before the outage
                    raise Violation("outage", f"{process.author.incarnation} stopped reading it", p)

    def check_available_now(self, process: Process) -> None:
        """Check that a run of AvailableNow has read all its partitions up to their ends at its start."""
        member, owner, most = process.member, process.plan.owner, process.plan.max_owned
        if process.gave_up_planning or process.is_of_another_hub or member.query.leaving or owner in self._drained:
            return
        full = most is not None and len(member.owned) >= most
        progress = {**member.query.resets, **member.query.progress}
        for p, lease in member.leases.items():
            is_free = lease.owner is None and not full and (lease.pin is None or lease.pin.to == owner)
            if not (lease.owner == owner or is_free) or lease.stall_count or lease.handover:
                continue
            position = position_in_epoch(lease.epoch, progress.get(p), lease.checkpoint)
            if position is not None and position.next < process.promised.get(p, 0):
                what = f"{process.author.incarnation} ends at {position.next}, but must have read up to"
                raise Violation("available now", f"{what} {process.promised[p]}", p)

    def check_plan(self, process: Process, end: StreamOffset | None) -> None:
        """Check a planned batch, which ends at `end`, and the reported resets of positions. If `end` is None, no batch
        was planned."""
        if end is not None:
            self.check(process, {p: planned.epoch for p, planned in end.ranges.items()})
        for p, reset in process.member.query.resets.items():
            if reset.position.next > self._reported_losses.get(p, 0):
                self.record_reported_loss(process, p, reset.position.next)

    def check_batch(self, process: Process, end: StreamOffset, ranges: Sequence[OffsetRange]) -> None:
        """Check the batch that `process` begins to read."""
        for planned in ranges:
            p, who = planned.partition, process.author.incarnation
            process.note(f"reads {planned.start} to {planned.end} with epoch {planned.epoch} in batch {end.batch}", p)
            if self._world.tampered:
                continue
            if (reader := self._readers.setdefault((p, planned.epoch), process)) is not process:
                raise Violation("epoch", f"{who} and {reader.author.incarnation} read it with epoch {planned.epoch}", p)
            loss = self._losses.get((p, planned.epoch))
            if loss is not None and loss.kind != "seek" and process.known_version >= loss.version:
                raise Violation("two planners", f"{who} reads it although it knows that it lost it by {loss.kind}", p)
            if p not in process.sought:  # a batch with a sought partition is run again, but not checkpointed
                self._planned[p, planned.epoch] = max(planned.end, self._planned[p, planned.epoch])

    def check_write(self, process: Process, end: StreamOffset, rows: Rows) -> None:
        """Check the `rows` that `process` wrote or tried to write."""
        sink = process.sink
        for p, row in () if process.is_of_another_hub else rows.items():
            if row.epoch != end.ranges[p].epoch:
                self._replayed.add((id(sink), p, row.end))
            written = sink.stored.find_stored(p, row)  # possibly in parts: the rest can be in other sinks
            if isinstance(sink, OnceSink) and p in self._ever_sought:  # events before a mark count as written
                written = [SequenceRange(row.start, row.end)]
            listed = ", ".join(f"{part.start} to {part.end}" for part in written)
            process.note(f"has {listed or 'nothing'} of it in its sink, read with epoch {row.epoch}", p)
            for part in written:
                self._ever_written.add(p, part)
            sought = row.epoch < self._sought.get(p, 0) or p in process.sought
            if written and not sought:
                # After a loss, the interruption of the last range can go unnoticed; the next owner reads the rest.
                lost = (p, row.epoch) in self._losses or process.known_version < self._replaced
                if row.start > (covered := self._covered_end(p)) and not lost:
                    raise Violation("skipped", f"events {covered} to {row.start - 1} are in no sink", p)
                for part in written:
                    self._written.add(p, part)
        if isinstance(sink, OnceSink) and sink.target.duplicates:
            raise Violation("exactly once", f"{sink.target.duplicates} events of {[*rows]} are in the target twice")
        if isinstance(sink, NumberedSink):
            for last, again in sink.duplicates:
                key = id(sink), last.partition, last.end
                # If a batch is run again, Spark's log still contains its old epoch. So there is no evidence of the
                # rerun if the process is killed right after it, or if a later process had joined before it ended.
                overtaken = process.query.had_twins and (last.partition, last.epoch) in self._losses
                was_moved = self._world.tampered or self._sought.get(again.partition, 0) > last.epoch
                if not (was_moved or overtaken) and key not in self._replayed:
                    what = f"{again.start} to {last.end - 1} are in the sink twice, although no other query owned them"
                    raise Violation("batch numbers", what, again.partition)
            sink.duplicates.clear()

    def check_finished(self, process: Process, end: StreamOffset) -> None:
        """Check that the sink contains the finished batch even if there was a seek."""
        sink, leases = process.sink, self._world.store.snapshot.leases
        # Events before a mark can be in another sink.
        if isinstance(sink, OnceSink) or process.query.had_twins or process.member.leaving or self._world.tampered:
            return
        for p, planned in end.ranges.items():
            lease = leases[p]
            kinds = {self._losses[p, epoch].kind for epoch in range(planned.epoch, lease.epoch)}
            if "seek" not in kinds or not kinds <= {"seek", "restart"} or lease.owner != end.owner or lease.handover:
                continue
            start = max(planned.start, self._world.hub.partitions[p].begin)
            if (written := sink.stored.first_missing(p, start)) < planned.end:
                what = f"{written} to {planned.end - 1} of batch {end.batch} are not in the sink, because of a seek"
                raise Violation("sought", what, p)

    def check_positions(self) -> None:
        """Check that a lease table that is created from any of the queries' checkpoints skips no event."""
        if self._world.tampered:
            return
        logs = {query.plan.owner: [query.log] for query in self._world.queries if query.log}
        for chosen in ([*logs], *([owner] for owner in logs)) if logs else ():
            named = query_positions({owner: logs[owner] for owner in chosen}, None).named
            for p, position in named.items():
                assert isinstance(position, Position)
                if p not in self._sought and position.next > (covered := self._covered_end(p)):
                    what = f"the checkpoints of {chosen} name {position.next}; events from {covered} on are in no sink"
                    raise Violation("skipped", what, p)

    def _covered_end(self, partition: str) -> int:
        """The position before which all events are in a sink, or have expired and were reported lost."""
        aged = min(self._world.hub.partitions[partition].begin, self._reported_losses.get(partition, 0))
        begin = self._begin.get(partition, 0)
        covered = self._written.first_missing(partition, max(begin, aged))
        return max(covered, self._written.first_missing(partition, begin))

    def backlog(self) -> Mapping[str, str]:
        """Partition → a description of what its checkpoint lacks."""
        unread, leases = {}, self._world.store.snapshot.leases
        for p, partition in self._world.hub.partitions.items():
            lease = leases.get(p, Lease(p))
            next = lease.checkpoint.next if lease.checkpoint else 0
            if next < partition.end:
                unread[p] = f"read to {next} of {partition.end}, owner {lease.owner}"
        return unread
