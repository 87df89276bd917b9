"""Keys that are equal for equivalent states. Two states are equivalent if, whatever happens next, every member does the
same in both.

Times are relative to now, and are capped at the longest duration with which they are compared. Epochs are relative to
the table's epochs. Counters and versions are only compared for equality with the table's, or with those that the same
process has read. Members differ only in their age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from spark_ehbalance.group.changes import Outcome, Transition
from spark_ehbalance.group.expiry import Observation
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.snapshot import Snapshot
from storm.exhaustive.state import STEP, Disk, Process, State

Key = tuple[Any, ...]

#: Durations in steps: a lease; more than half of a lease; a third of a lease; the age up to which a stored time affects
#: a cold start; the handover timeout.
_LEASE, _HALF, _THIRD, _COLD, _HANDOVER = 3, 2, 1, 4, 1

#: Epochs and processes that are at least this number behind the newest are equivalent.
_MAX_BEHIND = 3


def key(state: State, known: dict[Any, Any]) -> int:
    """A number that is the same for equivalent states. `known` caches parts of states with the same predecessor."""
    return hash(_Relative(state, known).state())


def _is_cold(engine: MemberEngine) -> bool:
    """Whether the engine has not read the table yet, or has observed something that has not changed since its first
    read."""
    seen = engine._member.group_state.observations
    return not seen.begun or any(observed.cold for observed in (*seen.leases.values(), *seen.members.values()))


class _Relative:
    """Computes keys of values, relative to one state."""

    def __init__(self, state: State, known: dict[Any, Any]) -> None:
        self.world, self.now, self.table = state, state.now, state.table
        rows, phases = state.table.members, {process.id: process.phase for process in state.processes}
        #: Members, by age.
        self.ids = sorted(state.disks, key=lambda id: (rows[id].joined if id in rows else 1 << 30, phases[id]))
        self.names: dict[str | None, int] = {None: -1} | {id: number for number, id in enumerate(self.ids)}
        leases = state.table.leases
        self.epochs = {p: lease.epoch for p, lease in leases.items()}
        self.positions = {p: lease.checkpoint.next if lease.checkpoint else 0 for p, lease in leases.items()}
        engines = [process.engine for process in state.processes if process.engine is not None]
        #: Whether stored times matter to any process.
        self.cold = state.left.starts != 0 or any(map(_is_cold, engines))
        #: The last snapshot that the process whose key is being computed has observed.
        self.last: Snapshot | None = None
        starts = [state.disks[id].starts for id in self.ids]
        self._known = known
        self._context = (id(self.table), self.now, *self.ids, *starts, self.cold, state.left.faults != 0, state.forced)

    def state(self) -> Key:
        state = self.world
        processes = [
            (
                self.names[process.id],
                self.run(process.engine.author.incarnation),
                self.cached_hash(process, partial(self.process, process)),
            )
            for process in state.processes
            if process.engine is not None
        ]
        return (
            state.left,
            self.cached_hash(None, lambda: self.rows(state.table)),
            tuple(sorted(processes, key=lambda entry: entry[:2])),
            tuple(self.disk(state.disks[id]) for id in self.ids),
            self.transitions(state.stray),
            tuple(self.epoch(p, epoch) for p, epoch in state.opened.items()),
            tuple(self.position(p, number) for p, number in state.covered.items()),
        )

    # --- numbers -------------------------------------------------------------------------------------------------

    def ago(self, time: float, most: int) -> float:
        """Seconds since `time`, capped at `most` steps."""
        return min(self.now - time, most * STEP)

    def epoch(self, partition: str, epoch: int) -> int:
        return min(self.epochs.get(partition, 0) - epoch, _MAX_BEHIND)

    def position(self, partition: str, next: int) -> int:
        return max(next - self.positions.get(partition, 0), -1)  # hash(-2) is hash(-1)

    def run(self, incarnation: str) -> Key:
        id, _, number = incarnation.partition(".")
        if not number:
            return ()
        return (self.names[id], min(self.world.disks[id].starts - int(number), _MAX_BEHIND))

    # --- the table -----------------------------------------------------------------------------------------------

    def snapshot(self, snapshot: Snapshot) -> Any:
        return "newest" if snapshot.version == self.table.version else self.rows(snapshot)

    def rows(self, snapshot: Snapshot) -> Key:
        members = sorted(snapshot.members.values(), key=lambda row: row.joined)
        return (
            tuple(map(self.lease, snapshot.leases.values())),
            tuple(map(self.member, members)),
            tuple(sorted((self.run(row.run), self.names[row.owner]) for row in snapshot.queries.values())),
            snapshot.table is None or snapshot.table.latest_ms is None,
            snapshot.lease_duration_ms,
        )

    def lease(self, lease: Lease) -> Key:
        p, last = lease.partition, self.last.leases.get(lease.partition) if self.last else None
        newest = self.table.leases.get(p)
        return (
            self.names[lease.owner],
            self.epoch(p, lease.epoch),
            newest is not None and newest.counter == lease.counter,
            last is not None and last.counter == lease.counter,
            self.cold and self.ago(lease.renewed_at_ms // 1000, _COLD),
            lease.checkpoint and self.position(p, lease.checkpoint.next),
            lease.handover and self.names[lease.handover.to],
            lease.handover and newest is not None and newest.handover == lease.handover,
            lease.handover and last is not None and last.handover == lease.handover,
            lease.handover and self.ago(lease.handover.requested_at_ms // 1000, _HANDOVER),
        )

    def member(self, row: Member) -> Key:
        last = self.last.members.get(row.id) if self.last else None
        newest = self.table.members.get(row.id)
        return (
            self.run(row.incarnation),
            row.state.value,
            row.lease_duration_ms,
            newest is not None and newest.counter == row.counter,
            last is not None and last.counter == row.counter,
            self.cold and self.ago(row.renewed_at_ms // 1000, _COLD),
        )

    def transitions(self, transitions: Iterable[Transition]) -> Key:
        return tuple(map(self.transition, transitions))

    def transition(self, transition: Transition) -> Key:
        lease = self.table.leases.get(getattr(transition, "partition", ""))
        row = self.table.members.get(getattr(transition, "member", ""))
        position, to = getattr(transition, "position", None), getattr(transition, "to", None)
        handover = getattr(transition, "overdue_handover", None)
        return (
            type(transition).__name__,
            self.run(transition.by.incarnation),
            self.cold and self.ago(transition.at_ms // 1000, _COLD),
            lease and lease.partition,
            lease and self.epoch(lease.partition, getattr(transition, "epoch", 0)),
            lease and position and self.position(lease.partition, position.next),
            lease and getattr(transition, "unchanged_counter", None) == lease.counter,
            lease and handover is not None and handover == lease.handover,
            row and (self.names[row.id], getattr(transition, "counter", None) == row.counter),
            to and self.names[to],
        )

    # --- a process -----------------------------------------------------------------------------------------------

    def disk(self, disk: Disk) -> Key:
        """The parts that can still affect the next process."""
        if self.world.left.starts == 0:
            return ()
        resume = ((p, self.position(p, at.next)) for p, at in disk.resume.items())
        progress = (
            (p, self.position(p, done.position.next), self.epoch(p, done.epoch)) for p, done in disk.progress.items()
        )
        return (
            tuple((p, ahead) for p, ahead in resume if ahead >= 0),
            tuple((p, ahead) for p, ahead, behind in progress if ahead > 0 and not behind),
        )

    def cached_hash(self, part: Any, key: Callable[[], Key]) -> int:
        """The hash of `key()`, which is the key of `part`. Cached."""
        known = (id(part), *self._context)
        if known not in self._known:
            self._known[known] = (hash(key()), part, self.table)  # with references, so that the ids are not reused
        return int(self._known[known][0])

    def process(self, process: Process) -> Key:
        engine, batch = process.engine, process.batch
        assert engine is not None
        self.last = engine._member.group_state.observations._last
        found = (
            process.phase,
            self.request(process.request),
            batch and tuple((p, self.epoch(p, e), self.position(p, at), cut) for p, (e, at, cut) in batch.items()),
            self.engine(engine, process.request),
        )
        self.last = None
        return found

    def request(self, request: Any) -> Any:
        if isinstance(request, Snapshot):
            return self.snapshot(request)
        if isinstance(request, Outcome):
            refused = self.transitions(refusal.transition for refusal in request.rejected)
            return (self.snapshot(request.after), self.transitions(request.accepted), refused, request.seconds is None)
        return request and self.transitions(request)

    def engine(self, engine: MemberEngine, request: Any) -> Key:
        member, turn, query = engine._member, engine._turn, engine.query
        look, written, belief, duration = member.read_state, member.commit_state, member.group_state, member.duration
        version = look.snapshot.version if look.snapshot else None
        record = self.table.queries.get(member.settings.lineage)
        delay = engine._memory
        newest = max((row.joined for row in self.table.members.values()), default=0)
        return (
            member.joined,
            self.ago(look.at, _HALF),
            self.ago(look.begun, _LEASE),
            self.ago(look.changed_at, _HALF),
            self.ago(look.unwritable_at, _THIRD),
            self.ago(look.tried, _HALF) if look.failed else None,
            look.drained,
            version == self.table.version,
            isinstance(request, Snapshot) and version == request.version,
            tuple((p, self.epoch(p, epoch)) for p, epoch in written.unclaimed),
            record is not None and record.start == written.start,
            self.ago(written.heartbeat, _THIRD),
            (written.failing or self.world.left.faults != 0) and self.ago(written.at, _HALF),
            written.failing,
            tuple(map(self.believed_lease, belief.leases.values())),
            self.observation_key(engine),
            tuple(
                (
                    p,
                    self.epoch(p, held.epoch),
                    self.position(p, held.checkpoint.next),
                    self.ago(held.renewed, _LEASE),
                    held.lasts,
                    held.handover_pending,
                    (p, held.epoch) in self.world.forced,
                )
                for p, held in member.owned.items()
            ),
            (duration.group, duration.own, duration.durations.shortest),
            (self.progress(query.progress), query.in_flight, query.leaving),
            delay and (self.ago(delay.began, 1), newest - delay.joined, self.ago(delay.last_join, 1)),
            turn and self.ago(turn.now.monotonic, _LEASE),
        )

    def believed_lease(self, lease: Lease) -> Key:
        at, newest = lease.checkpoint, self.table.leases.get(lease.partition)
        return (
            self.names[lease.owner],
            self.epoch(lease.partition, lease.epoch),
            newest is not None and newest.counter == lease.counter,
            at and self.position(lease.partition, at.next),
            lease.handover and newest is not None and newest.handover == lease.handover,
        )

    def observation_key(self, engine: MemberEngine) -> Key:
        """The observations, except those of the member itself, which it does not use."""
        member = engine._member
        seen, last = member.group_state.observations, member.group_state.observations._last
        owned = last.leases if last else {}
        leases = {p: at for p, at in seen.leases.items() if p not in member.owned and owned[p].owner is not None}
        members = {id: at for id, at in seen.members.items() if id != engine.author.id}
        return (
            seen.begun,
            last
            and (last.leases is member.group_state.leases or tuple(map(self.believed_lease, last.leases.values()))),
            last and tuple(sorted(self.member(row)[:4] for row in last.members.values())),
            self.observation_ages(leases),
            tuple(sorted((self.names[id], self.ago(at.since, _LEASE), at.cold) for id, at in members.items())),
            self.observation_ages(seen.handovers, _HANDOVER),
        )

    def observation_ages(self, observed: Mapping[str, Observation], most: int = _LEASE) -> Key:
        return tuple(sorted((p, self.ago(seen.since, most), seen.cold) for p, seen in observed.items()))

    def progress(self, progress: Mapping[str, Any]) -> Key:
        return tuple(
            (p, self.epoch(p, done.epoch), self.position(p, done.position.next)) for p, done in progress.items()
        )
