"""A member's turn: look, decide, commit, written once. No clock, no I/O, no thread.

The lease keeper drives it with real ones, the simulator with simulated ones:

    turn = participant.begin(snapshot, now)                     # after a look at the lease table
    if turn.balances:
        unread = turn.balance(partitions)                       # what the driver must ask the hub
        turn.start_at(starting_positions_of_unread)
    outcome = commit(store, snapshot, turn.transitions())
    participant.end(turn, outcome, seconds, ended)              # or participant.commit_failed()
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse

from spark_ehbalance.group.changes import (
    AddPartitions,
    Checkpoint,
    Drain,
    NoteHub,
    NoteLatest,
    Outcome,
    Take,
    Transition,
)
from spark_ehbalance.group.durations import renewal_interval
from spark_ehbalance.group.member.balancing import Balancer
from spark_ehbalance.group.member.lags import LagOf, with_lags
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks, Holding, Membership, Resumed
from spark_ehbalance.group.member.pacing import Pacing, tidying_due
from spark_ehbalance.group.member.pending import pending, shutdown
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Author, Lease, MemberState, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Partitions never read before that are claimed with one commit: finding where a time is in so many of them takes a few
#: seconds, during which no lease is renewed.
_MOST_STARTS = 32


@dataclass(slots=True)
class Turn:
    """What one turn has seen, decided and wants to write. `decision` and `view` are None where it does not balance.
    `latest_ms` is the moment, by the hub's clock, that `latest` means."""

    snapshot: Snapshot
    now: Clocks
    latest_ms: int
    stopping: bool
    balances: bool
    _pending: list[Transition]
    _abstain: str | None
    _member: Membership
    _balancer: Balancer
    _pacing: Pacing
    decision: Decision | None = None
    view: View | None = None
    _decided: list[Transition] = field(default_factory=list)

    def balance(self, partitions: tuple[str, ...], hub_created_ms: int | None = None) -> Sequence[str]:
        """Ask the strategy. `partitions` are those of the hub, which was created at that time if it is known. Returns
        the partitions for which `start_at` must be told a position."""
        by, at_ms = self._member.author, self.now.wall_ms
        new_table = not self.snapshot.leases
        if self._member.joined or new_table:
            # What was created while the group was at work is read from its first event, as Kafka's partitions are.
            at_work = self._member.joined and self._member.belief.leases and self._member.settings.capabilities.members
            start = Position.before(0) if at_work else None
            self._decided = [
                AddPartitions(by=by, at_ms=at_ms, partitions=(each,), checkpoint=start)
                for each in self._unknown(partitions)
            ]
        creates = new_table and bool(self._decided)
        if creates and hub_created_ms is not None:
            self._decided.append(NoteHub(by=by, at_ms=at_ms, created_ms=hub_created_ms))
        has_identity = self._member.settings.capabilities.members and (creates or self.snapshot.table)
        if has_identity and self.snapshot.latest_ms is None:
            # With the first commit: a query that is stopped before its first batch has started all the same.
            self._decided.append(NoteLatest(by=by, at_ms=at_ms, latest_ms=self.latest_ms))
        if not self._member.joined:
            # First be seen, then see who else is there, then decide: members that start together share at once.
            self.decision = Decision("nothing yet, because this member is joining", rebalance_now=True)
            return ()
        written_first = self._pending + self._decided if self._decided else self._pending
        self.decision, self.view = self._balancer.decide(written_first, self.now, self._abstain, partitions)
        self._decided += self.decision.transitions
        unread = self._claimed_unread()
        if len(unread) > _MOST_STARTS:
            later = frozenset(unread[_MOST_STARTS:])
            self._decided = [x for x in self._decided if not (isinstance(x, Take) and x.partition in later)]
            self.decision = replace(self.decision, rebalance_now=True)
        self._decided += self._balancer.forget_dead(self.view)
        return unread[:_MOST_STARTS]

    def start_at(self, positions: Mapping[str, Position]) -> None:
        """Claim partitions that were never read with the `positions` at which reading starts. A claim whose position is
        missing will be refused."""
        self._decided = [
            replace(each, starting_position=positions[each.partition], latest_ms=self.latest_ms)
            if isinstance(each, Take) and each.partition in positions
            else each
            for each in self._decided
        ]

    def hub_unavailable(self) -> None:
        """The hub cannot be asked: write what is pending, and decide nothing."""
        self._decided, self.view = [], None
        self.decision = Decision("nothing, because the hub does not answer")

    def transitions(self, lag_of: LagOf | None = None) -> list[Transition]:
        """What to commit in this turn, with what is unread if `lag_of` can tell. Called once."""
        wanted = self._pending + self._decided if self._decided else self._pending
        if not self.stopping:
            wanted = self._pacing.admit(wanted, self.now.monotonic, self._member.renewal_due(self._pacing.ahead))
            if wanted:
                change = self._member.duration.change(self.snapshot, self.now.monotonic, self.now.wall_ms)
                wanted = [*wanted, *change]
        if lag_of is None or not wanted:
            return wanted
        return with_lags(wanted, self.snapshot.leases, lag_of)

    def _unknown(self, partitions: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `partitions` that the table does not have."""
        return tuple(filterfalse(self._member.belief.leases.__contains__, partitions))

    def _claimed_unread(self) -> list[str]:
        """The partitions to be claimed that were never read."""
        assert self.view is not None, "it has balanced"
        leases = self.view.snapshot.leases
        taken = [each for each in self._decided if isinstance(each, Take)]
        return [x.partition for x in taken if x.starting_position is None and leases[x.partition].checkpoint is None]


class Participant:
    """One query's part in its group, from turn to turn.

    Not thread-safe: a driver with threads calls everything under one lock, except the methods of `Turn`, `pause`,
    `contended_pause` and `tidies`, which belong to the thread that takes the turns.

    `progress` is what the sink had finished in an earlier life of the query, up to the batch with that number, `begun`
    the number of the last one in its log, which the run `planner` has planned, `resume` as in `Membership`. Where the
    group has not started before, `latest` means the moment `latest_ms` of the hub's clock.
    """

    def __init__(
        self,
        author: Author,
        settings: Settings,
        rng: random.Random,
        *,
        progress: Mapping[str, Progress] | None = None,
        resume: Mapping[str, Resumed] | None = None,
        batch: int = 0,
        begun: int = 0,
        planner: str = "",
        latest_ms: int = 0,
    ) -> None:
        self._latest_ms = latest_ms
        self.author = author
        self.settings = settings
        #: What the query has told; `reserve` and `leave` tell of more.
        self.query = QueryState(dict(progress or {}), batch=batch, begun=begun, planner=planner)
        #: The batch runs for longer than `max_stall`: everything is given back until it ends.
        self.stalled = False
        #: How many members share the hub, as of the last turn.
        self.members = 1
        #: While this is set, balance again at once as long as there is something to take.
        self.settling = False
        #: Balancing cycles that ended, and those of them after which there was nothing left to take.
        self.cycles = 0
        self.settled_cycles = 0
        #: Times in a row that the store was not available.
        self.failures = 0
        self._member = Membership(author, settings, resume)
        self._balancer = Balancer(self._member, rng)
        self._pacing = Pacing(settings, rng)
        self._drained_itself = False  # because of a stall
        self._looked = 0.0  # the last try to look, and whether the store was away then
        self._store_away = False
        self._tidied = (0, 0.0)  # version and time

    # --- what the query reports --------------------------------------------------------------------------------

    def reserve(self, epochs: Mapping[str, int], now: float) -> frozenset[str]:
        """Begin a batch with partitions and the epochs that it was planned with. Returns those that may be read; they
        are kept until the batch ends, unless another member takes them by force."""
        held = self.plannable()
        partitions = frozenset(p for p, epoch in epochs.items() if p in held and held[p].epoch == epoch)
        self.query.in_flight, self.query.batch_began = partitions, now
        return partitions

    def leave(self) -> None:
        """Take nothing more, and give back everything that is not in flight, from the next turn on, which is now."""
        self.query.leaving = True
        self.look_now()

    def look_now(self) -> None:
        """The next turn is due at once."""
        self._pacing.look_at = 0.0

    # --- what the query may know -------------------------------------------------------------------------------

    @property
    def table(self) -> TableIdentity | None:
        """Identifies the lease table; None while no partition was added, and in stores that keep no identity."""
        return self._member.belief.table

    @property
    def snapshot(self) -> Snapshot | None:
        """The group as of the last look, with the leases as of the last commit; None before the first look."""
        look = self._member.look.snapshot
        return None if look is None else replace(look, leases=self.leases)

    @property
    def known_begun(self) -> int:
        """The number of the query's last begun batch that the table contains."""
        return self._member.written.begun

    @property
    def leases(self) -> Mapping[str, Lease]:
        """All leases as of the last look or commit."""
        return self._member.belief.leases

    @property
    def owned(self) -> Mapping[str, Holding]:
        """All partitions that this member owns, as of the last look or commit."""
        return self._member.holdings

    @property
    def leaving(self) -> bool:
        """Whether everything owned is to be given back."""
        return self.query.leaving or self._member.look.drained or self.stalled

    @property
    def idle(self) -> bool:
        """Whether nothing is owned, in flight, or waiting to be committed."""
        return not (self._member.holdings or self.query.in_flight or self.query.progress)

    def plannable(self) -> dict[str, Holding]:
        """The owned partitions that are not to be given away."""
        if self.leaving:
            return {}
        return {p: holding for p, holding in self._member.holdings.items() if not holding.handover_pending}

    def holdings(self, now: float) -> dict[str, Holding]:
        """The partitions that a batch may be planned with at monotonic time `now`: not to be given away, and not free
        for others to take.

        While the store is away they stay, because nobody else can take them in the table either, and the hub's epochs
        still keep two readers apart. A process that was suspended plans with nothing until it has looked again.
        """
        return self._valid(self.plannable(), now)

    # --- the turn ----------------------------------------------------------------------------------------------

    def due(self) -> float:
        """The monotonic time of the next turn, unless the query reports something before."""
        if self.query.reset_since_look:
            return 0.0
        due = self._pacing.due(self._member.renewal_due(self._pacing.ahead), progress=self.query.progress_since_look)
        return min(due, self._looked + self._member.longest_look_gap)

    def look_failed(self, now: float) -> None:
        """The store could not be read at monotonic time `now`."""
        self._looked, self._store_away = now, True

    def begin(self, snapshot: Snapshot, now: Clocks, *, stopping: bool = False) -> Turn:
        """Take in what a look at the table has found, and what the query has reported. `stopping`: the last turn.

        From here on no batch is planned with what this turn gives away. Raises `FencedError` and `DataLossError` as
        `Membership.see` does.
        """
        self._see(snapshot, now)
        member, query, leaving, balances = self._member, self.query, self.leaving, False
        self._pacing.hurried = leaving or any(each.handover_pending for each in member.holdings.values())
        if stopping:
            to_write = shutdown(member, query, now)
        else:
            # The end of a batch that hangs is not waited for.
            in_flight = frozenset[str]() if self.stalled else query.in_flight
            to_write = pending(member, query, in_flight, now, leaving=leaving)
            to_write += self._drain(snapshot, now)
            balances = self._pacing.balances(now.monotonic, lambda: self._balancer.unsettled(now))
        abstain = self._reason_to_abstain() if leaving else None
        latest_ms = self._latest_ms if snapshot.latest_ms is None else snapshot.latest_ms
        parts = to_write, abstain, member, self._balancer, self._pacing
        return Turn(snapshot, now, latest_ms, stopping, balances, *parts)

    def commit_failed(self) -> None:
        """The store could be read, but not be written."""
        self._member.on_commit_failed()

    def end(self, turn: Turn, outcome: Outcome, seconds: float, ended: float) -> None:
        """Take in the result of the turn's commit, which took `seconds` and has `ended` at that monotonic time."""
        member, snapshot, decision = self._member, outcome.after, turn.decision
        _log_refused(outcome)
        member.on_committed(outcome, turn.now, ended, self.query)
        self.query.on_committed(outcome)
        # Where the store keeps no rows of members, the others are known by what they own.
        self.failures, self.members = 0, len(snapshot.members.keys() | snapshot.ownership.owned.keys() - {None})
        in_handover = member.in_handover(snapshot)
        if decision is not None:
            if self.settling and decision.transitions:
                decision = replace(decision, rebalance_now=True)
            if _came_to_nothing(decision, outcome):
                decision = replace(decision, rebalance_now=False)
            self.cycles += not decision.rebalance_now
            goes_on = decision.rebalance_now or decision.rebalance_after is not None or in_handover
            self.settled_cycles += turn.view is not None and not goes_on  # without a view the hub did not answer
        self._pacing.turned(
            turn.now.monotonic,
            members=self.members,
            in_handover=in_handover,
            took=None if snapshot is outcome.before else seconds,
            waited=seconds - (outcome.seconds or 0.0),
            decision=decision,
        )

    def pause(self) -> float:
        """The store was not available: how many seconds to wait before the next turn."""
        self.failures += 1
        return self._pacing.pause(self.failures, renewal_interval(self._member.duration.own))

    def contended_pause(self) -> float:
        """The commit lost too many races: how many seconds to wait before the next turn."""
        return self._pacing.contended_pause()

    def settle(self) -> None:
        """Balance at once, and again as long as there is something to take, until `settling` is cleared."""
        self.settling, self._pacing.balance_at = True, 0.0

    def tidies(self, snapshot: Snapshot, now: Clocks) -> bool:
        """Whether this member is to tidy the store up after this turn; it is then taken to have done so."""
        versions, passed = snapshot.version - self._tidied[0], now.monotonic - self._tidied[1]
        if not (tidying_due(versions, passed, self.settings.tidy_interval) and self._balancer.leads(snapshot, now)):
            return False
        self._tidied = (snapshot.version, now.monotonic)
        return True

    # --- inside ------------------------------------------------------------------------------------------------

    def _valid(self, holdings: Mapping[str, Holding], now: float) -> dict[str, Holding]:
        trying = self._store_away and now - self._looked < 2 * self.settings.balance_interval
        return dict(holdings) if trying else self._member.valid(holdings, now)

    def _see(self, snapshot: Snapshot, now: Clocks) -> None:
        self._member.see(snapshot, now, self.query)
        self._looked, self._store_away = now.monotonic, False
        self.query.progress_since_look = self.query.reset_since_look = False
        if self.settings.max_stall is not None:
            self._check_stall(now.monotonic, self.settings.max_stall)

    def _check_stall(self, now: float, limit: float) -> None:
        ran = now - self.query.batch_began
        stalled = bool(self.query.in_flight) and ran > limit
        if stalled and not self.stalled:
            _LOG.error(
                "the batch has run for %.0f s, longer than maxStall=%g s: giving back partitions %s. The query goes on "
                "owning nothing until the batch ends",
                ran, limit, ", ".join(self._member.holdings),
            )  # fmt: skip
        elif self.stalled and not stalled:
            _LOG.warning("the batch that took too long has ended: taking part again")
        self.stalled = stalled

    def _drain(self, snapshot: Snapshot, now: Clocks) -> list[Transition]:
        """Let the others take what this member gives back: for good, or as long as the query hangs."""
        if not (self.query.leaving or self.stalled or self._drained_itself):
            return []
        row = snapshot.members.get(self.author.id)
        drain = Drain(by=self.author, at_ms=now.wall_ms, member=self.author.id)
        if self.query.leaving:
            return [drain]
        if row is None:
            return []
        active = row.state is MemberState.ACTIVE
        if self.stalled and active:
            self._drained_itself = True
            return [drain]
        self._drained_itself = self._drained_itself and not active  # do not undo what an operator has ordered
        return [replace(drain, undo=True)] if self._drained_itself and not self.stalled else []

    def _reason_to_abstain(self) -> str:
        return "the query hangs" if self.stalled else "this member is leaving"


def _came_to_nothing(decision: Decision, outcome: Outcome) -> bool:
    """Whether the store could write none of what was decided, though no other member was faster: it is tried again in
    the next cycle, not at once."""
    written = (*outcome.accepted, *(each.transition for each in outcome.refused))
    settled = {getattr(each, "partition", None) for each in written}
    decided = {getattr(each, "partition", None) for each in decision.transitions}
    return outcome.seconds is not None and bool(decided) and decided.isdisjoint(settled)


def _log_refused(outcome: Outcome) -> None:
    for each in outcome.refused:
        if isinstance(each.transition, Checkpoint):
            _LOG.info("partition %s: checkpoint refused: %s", each.transition.partition, each.reason)
