"""The behaviour of one member, as a function of its inputs. No clock, no I/O, no thread.

A driver passes inputs to `MemberEngine.handle` and carries out the outputs that it returns. Some outputs have a result,
which the driver passes as the next input:

    ReadGroup         →  GroupRead, StoreFailed
    ResolvePositions  →  PositionsResolved
    CommitChanges     →  Committed, StoreFailed, RacesLost

A turn begins with `Tick`, continues through these inputs, and ends with the next pause. The lease keeper drives an
engine with a real clock, store and hub; the simulator and the tests drive it with simulated ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import Checkpoint, Drain, Outcome, Take, Transition
from spark_ehbalance.group.durations import renewal_interval
from spark_ehbalance.group.member import balancing, protocol
from spark_ehbalance.group.member.hang import Hang
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks, Membership, OwnedLease, OwnedLeases, ResumePoint
from spark_ehbalance.group.member.pacing import FIRST_PAUSE, Pace, contended_pause, pause, tidying_due
from spark_ehbalance.group.member.pending import found, pending, shutdown
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Author, Lease, Load, MemberLoad, TableIdentity
from spark_ehbalance.group.ownership import Ownership
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.overrides import with_overrides
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum number of never-read partitions claimed by one commit. Resolving a time in this many partitions takes
#: seconds, during which no lease is renewed.
_MAX_STARTS = 32


@dataclass(slots=True)
class _Turn:
    """A turn in progress, after its read at `now`. `decision` is None if the turn does not balance. `latest_ms` is the
    time that `latest` means, by the hub's clock."""

    read: protocol.GroupRead
    now: Clocks
    latest_ms: int
    stopping: bool
    pending: list[Transition]
    decision: Decision | None = None
    view: View | None = None
    decided: list[Transition] = field(default_factory=list)

    @property
    def to_write(self) -> list[Transition]:
        return self.pending + self.decided if self.decided else self.pending


@dataclass(eq=False)
class MemberEngine:
    """One query's membership in its group. Not thread-safe: a driver with threads needs a lock.

    For `resume` see `Membership`, and for `checked` see `Membership.initial`. `latest_ms` and `ends` are the meaning of
    `latest` if this is the group's first start; see `RecordLatest`.
    """

    author: Author
    settings: Settings
    rng: random.Random
    _: KW_ONLY
    #: State reported by the query; at first, the state left by its earlier processes.
    query: QueryState = field(default_factory=QueryState)
    resume: Mapping[str, ResumePoint] = field(default_factory=dict)
    latest_ms: int = 0
    ends: Mapping[str, Position] = field(default_factory=dict)
    checked: Snapshot | None = None

    def __post_init__(self) -> None:
        #: Number of members, as of the last turn.
        self.members = 1
        #: Balance again at once as long as there are partitions to take.
        self.rebalancing = False
        #: Number of finished balancing cycles, and how many of them left no partition to take.
        self.cycles = 0
        self.idle_cycles = 0
        #: Consecutive store failures.
        self.failures = 0
        self._member = Membership.initial(self.author, self.settings, self.resume, self.checked)
        self._pace = Pace()
        self._balanced: Ownership | None = None  # at the last balancing
        self._memory: Any = None  # the strategy's memory
        self._turn: _Turn | None = None
        self._read_begun: float | None = None  # the time before the read in progress
        self._stopping = False
        self._hang = Hang()
        self._tidied = (0, 0.0)  # version and time

    def handle(self, input: protocol.Input, now: Clocks) -> list[protocol.Output]:
        """The outputs for `input` at the time `now`. After `Fail`, no more inputs are allowed."""
        try:
            match input:
                case protocol.Tick():
                    read = self._begin_read(now)
                    return read if now.monotonic >= self.due() else []
                case protocol.GroupRead():
                    return self._group_read(input, now)
                case protocol.PositionsResolved(positions):
                    return self._hub_answered(positions, now)
                case protocol.Committed(outcome, seconds):
                    return self._committed(outcome, seconds, now)
                case protocol.RacesLost():
                    return self._races_lost(now)
                case protocol.StoreFailed(writing):
                    return self._store_failed(now, writing=writing)
                case _:
                    return self._requested(input)
        except EhBalanceError as error:
            self._member = replace(self._member, owned_leases=OwnedLeases())
            return [protocol.Fail(error)]

    # --- reports of the query ----------------------------------------------------------------------------------

    def begin_batch(self, epochs: Mapping[str, int], now: float) -> frozenset[str]:
        """Begin a batch planned with these partitions and epochs. Returns the partitions that may be read. The member
        keeps them until the batch ends, unless another member takes them by force."""
        held = self.readable(now, replay=True)
        partitions = frozenset(p for p, epoch in epochs.items() if p in held and held[p].epoch == epoch)
        self.query = replace(self.query, in_flight=partitions, batch_began=now, to_replay=frozenset())
        return partitions

    def record_batch(self, batch: int, planner: str) -> None:
        """Record, with the next commit, that this batch, planned by the run `planner`, was given to the sink."""
        self.query = replace(self.query, begun=batch, planner=planner)

    def finish_batch(self, progress: Mapping[str, Progress], batch: int = 0) -> None:
        """End the batch after the sink finished `progress`, which the next commit checkpoints."""
        self.query = self.query.finished(progress, batch)

    def reset(self, resets: Mapping[str, Progress]) -> None:
        """Continue reading at these positions, possibly before the checkpoints."""
        self.query = self.query.reset(resets)

    def measure(self, loads: Mapping[str, Load], load: MemberLoad | None = None) -> None:
        """Set the loads (moving averages) of the owned partitions and of the member, which the next renewals record."""
        self.query = replace(self.query, loads=loads, load=load)

    def note_request(self, at_ms: int, left_out: Mapping[str, str]) -> None:
        """Record the time of Spark's request for a batch and the partitions omitted from it; see `Member`."""
        self.query = replace(self.query, asked_ms=at_ms, left_out=left_out)

    # --- state for the query -----------------------------------------------------------------------------------

    @property
    def table(self) -> TableIdentity | None:
        """The lease table's identity; None before the first partition, and in stores that keep no identity."""
        return self._member.group_state.table

    @property
    def snapshot(self) -> Snapshot | None:
        """The group as of the last read, with the leases as of the last commit; None before the first read."""
        snapshot = self._member.read_state.snapshot
        return None if snapshot is None else replace(snapshot, leases=self.leases)

    @property
    def recorded_batch(self) -> int:
        """The number of the last batch that the query began, as recorded in the table."""
        return self._member.commit_state.begun

    @property
    def leases(self) -> Mapping[str, Lease]:
        """All leases as of the last read or commit."""
        return self._member.group_state.leases

    @property
    def owned(self) -> Mapping[str, OwnedLease]:
        """The owned partitions as of the last read or commit."""
        return self._member.owned

    @property
    def unclaimed(self) -> frozenset[str]:
        """The partitions of an earlier process that this process will claim in its next commit."""
        return frozenset(lease.partition for lease in self._member.unclaimed)

    @property
    def leaving(self) -> str | None:
        """The reason why all owned partitions must be released; None if they need not be."""
        if self._hang.active:
            return "the query hangs"
        return "this member is leaving" if self.query.leaving or self._member.read_state.drained else None

    @property
    def is_leaving(self) -> bool:
        """Whether the query or an operator requested that all partitions be released permanently."""
        return self.query.leaving or (self._member.read_state.drained and not self._hang.drained)

    @property
    def idle(self) -> bool:
        """Whether nothing is owned, in flight or uncommitted."""
        return not (self._member.owned or self.query.in_flight or self.query.progress)

    def plannable(self, *, replay: bool = False) -> dict[str, OwnedLease]:
        """The owned partitions without a pending handover or release.

        For a `replay`, also the partitions that are released only after it. If a replay omitted a partition and a later
        replay of the same batch contained it, a sink that skips known batch numbers would lose its events.
        """
        kept, stays = self._in_batch if replay else frozenset(), not self.leaving
        return {p: x for p, x in self._member.owned.items() if p in kept or (stays and not x.handover_pending)}

    def readable(self, now: float, *, replay: bool = False) -> Mapping[str, OwnedLease]:
        """The plannable partitions whose leases are valid at monotonic time `now`; see `Membership.still_valid`."""
        return self._member.still_valid(self.plannable(replay=replay), now)

    @property
    def _in_batch(self) -> frozenset[str]:
        """Partitions to keep until their batch ends; none if it hangs."""
        return frozenset() if self._hang.active else self.query.in_flight | self.query.to_replay

    def due(self) -> float:
        """The monotonic time at which the next turn is due, unless a report makes it due earlier."""
        if self._stopping or self.query.reset_since_read:
            return self._pace.paused_until
        member, pace = self._member, self._pace
        due = pace.due(member.renewal_due(pace.ahead), progress=self.query.progress_since_read)
        return max(min(due, member.read_due), pace.paused_until)

    def _requested(self, request: protocol.Request) -> list[protocol.Output]:
        match request:
            case protocol.RebalancingBegan():
                self.rebalancing, self._pace = True, replace(self._pace, balance_at=0.0)
            case protocol.RebalancingEnded():
                self.rebalancing = False
            case protocol.StopRequested():
                self._stopping, self._pace = True, replace(self._pace, paused_until=0.0)
            case protocol.ReadRequested():
                self._pace = replace(self._pace, read_at=0.0)
            case protocol.LeaveRequested():
                self.query, self._pace = replace(self.query, leaving=True), replace(self._pace, read_at=0.0)
        return []

    # --- the turn ----------------------------------------------------------------------------------------------

    def _begin_read(self, now: Clocks) -> list[protocol.Output]:
        self._read_begun, self.query = now.monotonic, self.query.before_read()
        return [protocol.ReadGroup()]

    @property
    def _unread(self) -> frozenset[str]:
        """The partitions whose checkpoints wait for another read; see `pending._progress`."""
        return frozenset() if self.settings.capabilities.atomic else self.query.progress_during_read

    def _group_read(self, read: protocol.GroupRead, now: Clocks) -> list[protocol.Output]:
        """Process the table's new state and the query's reports, and decide what to write.

        From here on no batch is planned with partitions that this turn releases.
        """
        snapshot = read.snapshot
        self._member = member = self._member.after_read(snapshot, now, self.query, self._read_begun)
        unread = self._unread
        self.query = query = self.query.after_read(unread)
        self._hang = self._hang.checked(query, self.settings.max_stall, now.monotonic, member.owned)
        leaving = self.leaving is not None
        latest_ms = self.latest_ms if snapshot.latest_ms is None else snapshot.latest_ms
        if self._stopping:
            if unread:
                return self._begin_read(now)
            self._turn = _Turn(read, now, latest_ms, True, shutdown(member, query, now))
            return self._write(now)
        to_write = pending(member, query, self._in_batch | unread, now, leaving=leaving)
        drain = Drain(by=self.author, at_ms=now.wall_ms, member=self.author.id)
        self._hang, drains = self._hang.drain(snapshot.members.get(self.author.id), drain)
        to_write += [drain] if query.leaving else drains
        self._turn = turn = _Turn(read, now, latest_ms, False, to_write)
        if not self._balances(now):
            return self._write(now)
        if never_read := self._balance(turn):
            return [protocol.ResolvePositions(never_read, latest_ms)]
        return [*self._decided(turn), *self._write(now)]

    def _balances(self, now: Clocks) -> bool:
        """Whether to balance in this turn: once per interval and, in a reactive group, whenever ownership changed, but
        not while other members have precedence."""
        if now.monotonic < self._pace.others_until:
            return False
        if now.monotonic >= self._pace.balance_at:
            return True
        return self.settings.reactive and balancing.needs_rebalance(self._member, self._balanced, now)

    def _balance(self, turn: _Turn) -> Sequence[str]:
        """Run the strategy. Returns the partitions whose starting positions the hub must resolve."""
        member, read = self._member, turn.read
        latest = turn.latest_ms, self.ends
        turn.decided = [*found(member, read.partitions, read.hub_created_ms, *latest, turn.now.wall_ms)]
        if not member.joined:
            # Join, then read the other members, then decide, so that members that start together share the partitions
            # at once.
            turn.decision = Decision("nothing yet, because this member is joining", rebalance_now=True)
            return ()
        self._balanced = member.snapshot.ownership
        turn.view = balancing.view(member, turn.to_write, read.partitions, turn.now, self.rng, self._memory)
        if reason := self.leaving:
            # Once the batch has ended, this member takes part again from the next turn.
            turn.decision = Decision(f"nothing, because {reason}", rebalance_now=self._hang.is_over)
        else:
            turn.decision = with_overrides(self.settings.strategy)(turn.view)
        self._memory = turn.decision.memory
        turn.decided += turn.decision.transitions
        unread = _claimed_unread(turn.decided, turn.view)
        if len(unread) > _MAX_STARTS:
            later = frozenset(unread[_MAX_STARTS:])
            turn.decided = [x for x in turn.decided if not (isinstance(x, Take) and x.partition in later)]
            turn.decision = replace(turn.decision, rebalance_now=True)
        turn.decided += balancing.forget_dead(turn.view)
        return unread[:_MAX_STARTS]

    def _hub_answered(self, positions: Mapping[str, Position] | None, now: Clocks) -> list[protocol.Output]:
        """Add the starting `positions` to the claims of never-read partitions; claims without a position will be
        rejected. If the hub is unreachable (None), write only the pending transitions."""
        turn = self._turn
        assert turn is not None, "positions are resolved in a turn"
        if positions is None:
            turn.decided, turn.view = [], None
            turn.decision = Decision("nothing, because the hub does not answer")
        else:
            turn.decided = [
                replace(transition, starting_position=positions[transition.partition], latest_ms=turn.latest_ms)
                if isinstance(transition, Take) and transition.partition in positions
                else transition
                for transition in turn.decided
            ]
        return [*self._decided(turn), *self._write(now)]

    @staticmethod
    def _decided(turn: _Turn) -> list[protocol.Output]:
        assert turn.decision is not None
        return [protocol.DecisionMade(turn.decision, turn.view)]

    def _write(self, now: Clocks) -> list[protocol.Output]:
        """Commit the turn's transitions, unless they may wait."""
        turn = self._turn
        assert turn is not None
        snapshot, at, changes, member = turn.read.snapshot, turn.now, turn.to_write, self._member
        if not turn.stopping:
            self._pace = self._pace.admit(changes, at.monotonic, member.renewal_due(self._pace.ahead))
            if self._pace.is_holding:
                changes = []
            if changes:
                duration, change = member.duration.next_change(snapshot, at.monotonic, at.wall_ms)
                self._member, changes = replace(member, duration=duration), [*changes, *change]
        if changes:
            return [protocol.CommitChanges(snapshot, changes)]
        return self._committed(Outcome(snapshot, snapshot), 0.0, now)

    def _committed(self, outcome: Outcome, seconds: float, now: Clocks) -> list[protocol.Output]:
        """Process the result of the turn's commit, which ends the turn."""
        turn, snapshot = self._turn, outcome.after
        assert turn is not None
        self._turn = None
        for rejection in outcome.rejected:
            if isinstance(rejection.transition, Checkpoint):
                _LOG.info("Checkpoint rejected: %s. partition=%s", rejection.reason, rejection.transition.partition)
        self._member = self._member.after_commit(outcome, turn.now, now.monotonic, self.query)
        self.query = self.query.after_commit(outcome)
        # If the store keeps no member rows, every owner counts as a member.
        self.failures, self.members = 0, len(snapshot.members.keys() | snapshot.ownership.owned.keys() - {None})
        in_handover = self._member.in_handover(snapshot)
        decision = turn.decision
        if decision is not None:
            if self.rebalancing and decision.transitions:
                decision = replace(decision, rebalance_now=True)
            if _had_no_effect(decision, outcome):
                decision = replace(decision, rebalance_now=False)
            self.cycles += not decision.rebalance_now
            continues = decision.rebalance_now or decision.rebalance_after is not None or in_handover
            self.idle_cycles += turn.view is not None and not continues  # if there is no view, the hub did not answer
        self._pace = self._pace.after_turn(
            self.settings,
            self.rng,
            turn.now.monotonic,
            members=self.members,
            in_handover=in_handover,
            took=None if snapshot is outcome.before else seconds,
            waited=seconds - (outcome.seconds or 0.0),
            decision=decision,
        )
        ended: list[protocol.Output] = [protocol.CommitEnded(outcome, self._tidies(snapshot, turn.now))]
        return [*ended, protocol.Left()] if turn.stopping else ended

    def _races_lost(self, now: Clocks) -> list[protocol.Output]:
        self._turn = None
        self._pace = replace(self._pace, paused_until=now.monotonic + contended_pause(self.rng))
        return []

    def _store_failed(self, now: Clocks, *, writing: bool) -> list[protocol.Output]:
        self._turn = None
        if writing:
            self._member = self._member.commit_failed()
        else:
            self._member = self._member.read_failed(now.monotonic, self._read_begun)
        self.failures += 1
        interval = renewal_interval(self._member.duration.own)
        wait = FIRST_PAUSE if self._stopping else pause(self.settings, self.rng, self.failures, interval)
        self._pace = replace(self._pace, paused_until=now.monotonic + wait)
        return []

    def _tidies(self, snapshot: Snapshot, now: Clocks) -> bool:
        """Whether this member must run the store's maintenance after this turn. If so, this records the run."""
        versions, passed = snapshot.version - self._tidied[0], now.monotonic - self._tidied[1]
        if not (
            tidying_due(versions, passed, self.settings.tidy_interval) and balancing.leads(self._member, snapshot, now)
        ):
            return False
        self._tidied = (snapshot.version, now.monotonic)
        return True


def _claimed_unread(decided: Sequence[Transition], view: View) -> list[str]:
    """The never-read partitions that `decided` claims."""
    taken, leases = [transition for transition in decided if isinstance(transition, Take)], view.snapshot.leases
    return [x.partition for x in taken if x.starting_position is None and leases[x.partition].checkpoint is None]


def _had_no_effect(decision: Decision, outcome: Outcome) -> bool:
    """Whether the store wrote none of the decision's transitions although no race was lost. If so, the next cycle
    retries them."""
    written = (*outcome.accepted, *(rejection.transition for rejection in outcome.rejected))
    settled = {getattr(transition, "partition", None) for transition in written}
    decided = {getattr(transition, "partition", None) for transition in decision.transitions}
    return outcome.seconds is not None and bool(decided) and decided.isdisjoint(settled)
