"""One member's part in its group: what it holds, what it has to say, what it wants. No clock, no I/O.

The keeper drives it with real clocks and a real store, a simulator with made-up ones.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.leases.expiry import (
    Observations,
    expired_leases,
    expired_members,
    overdue_handovers,
    tenured_leases,
)
from spark_ehbalance.leases.model import Author, Lease, Load, MemberLoad, MemberState, TableIdentity
from spark_ehbalance.leases.ownership import Ownership
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    CancelHandover,
    Checkpoint,
    Claim,
    Defend,
    Forget,
    HandOver,
    Heartbeat,
    Join,
    LeaseTransition,
    Leave,
    Outcome,
    PutBack,
    Release,
    Renew,
    Reset,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.strategies.base import Decision, Strategy, View
from spark_ehbalance.strategies.overrides import with_overrides
from spark_ehbalance.values.defaults import HANDOVER_TIMEOUT
from spark_ehbalance.values.position import Position, partition_order

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holding:
    """A partition that this member owns: the lease's epoch, its checkpoint, and when it was last renewed (on this
    member's monotonic clock, in seconds). `promised`: a handover is pending, and no new batch is planned with it."""

    epoch: int
    checkpoint: Position
    renewed: float
    handover_pending: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What the sink has finished of a partition under `epoch`."""

    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of both clocks: monotonic seconds, and wall-clock milliseconds since 1970."""

    monotonic: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How this member behaves. Times are in seconds."""

    strategy: Strategy
    lease_duration: float
    handover_timeout: float = HANDOVER_TIMEOUT
    max_owned: int | None = None
    host: str = ""
    strategy_name: str = ""

    @property
    def renewal_interval(self) -> float:
        """A third of the lease duration: two renewals may be lost before the lease is."""
        return self.lease_duration / 3

    @property
    def short_spell(self) -> float:
        """For how long nobody may be able to write without anybody's being taken for dead: who is alive has renewed a
        renewal interval before at the most, and tries again within a fifth of the lease duration afterwards."""
        return self.lease_duration * 4 / 9

    @property
    def minimum_tenure(self) -> float:
        """Ten lease durations (5 minutes): moving averages of the load have then forgotten the move before."""
        return 10 * self.lease_duration


#: What moves a lease's renewal counter on.
_RENEWING = frozenset({Claim, Defend, Steal, Renew, Checkpoint, Reset})

#: What nobody else's doings depend on.
_ROUTINE = frozenset({Checkpoint, Heartbeat, Renew})


def in_force(holdings: Mapping[str, Holding], now: float, settings: Settings, assured: float) -> dict[str, Holding]:
    """Those of `holdings` that nobody else can have been free to take at `now`: renewed within the lease duration; or
    all, if it was `assured` just now that nobody could write the table, and who can by now has to wait for longer."""
    if now - assured < settings.renewal_interval:
        return dict(holdings)
    return {p: holding for p, holding in holdings.items() if now - holding.renewed < settings.lease_duration}


def is_routine(said: Iterable[Transition]) -> bool:
    """Whether `said` may wait for the next commit that is due."""
    return all(type(each) in _ROUTINE for each in said)


#: A load is told anew when it has changed by more than this part, and by more than so many events per second: moving
#: averages never stand still, and whatever changes has everybody decide anew. A backlog counts spread over seconds.
_NEWS, _LEAST_NEWS, _BACKLOG_SECONDS = 0.05, 0.1, 60.0

#: Partitions never read before that are claimed with one commit: to find where a time is in so many of them takes a few
#: seconds, for which no lease is renewed.
_MOST_STARTS = 32


class Membership:
    """The state machine of one member. `see` what the store holds, ask what to `say`, tell what was `written`.

    `author` names the member and this process of it. `resume` are partitions that the last life of this member
    was reading: besides those that the table still says are its own, they are claimed at once if they are free and
    would go on at the given sequence number.
    """

    def __init__(
        self,
        author: Author,
        settings: Settings,
        rng: random.Random,
        *,
        finished: Mapping[str, Progress] | None = None,
        resume: Mapping[str, int] | None = None,
    ) -> None:
        self.author = author
        self.settings = settings
        self.holdings: Mapping[str, Holding] = {}
        #: Partitions in the batch that the query is at: nothing of them is given away before it ends.
        self.in_flight: frozenset[str] = frozenset()
        #: The query hangs: everything is given back, and nothing taken, until that is over.
        self.stalled = False
        #: When it was last seen that nobody had written the table for half a lease duration. Everybody who is alive
        #: tries to after a third, so that they all cannot, and nobody counts others' time before the first who can.
        self.assured = float("-inf")
        #: Which lease table it is, as last seen; None while no partition was added, and in tables of earlier versions.
        self.table: TableIdentity | None = None
        #: What the strategy was last shown; None where it was not asked.
        self.view: View | None = None
        self._rng = rng
        self._observations = Observations(horizon=settings.minimum_tenure)
        self._looked = self._looked_before = float("-inf")
        self._moved = float("inf")  # when the table was last seen to have changed
        self._told = False  # that the table has lost partitions
        self._mute = False  # the last commit has failed, and none has succeeded since
        self._wrote = float("-inf")  # when the last commit that succeeded was begun
        self._ownership: Ownership | None = None  # at the last balancing
        self._memory: Any = None  # the strategy's
        self._finished = dict(finished or {})
        self._resets: dict[str, Progress] = {}
        self._resume = dict(resume or {})
        self._loads: Mapping[str, Load] = {}
        self._load: MemberLoad | None = None
        self._leases: Mapping[str, Lease] = {}  # as last seen
        self._snapshot: Snapshot | None = None  # that was seen last
        self._own: list[Lease] = []  # in it
        self._oldest = float("inf")  # renewal of what it holds
        self._joined = False
        self._number = 0  # its last `Member.joined`: a process that joined before is an older state's, put back
        self._leaving = False
        self._heartbeat = float("-inf")

    # --- what comes in -----------------------------------------------------------------------------------------

    def see(self, snapshot: Snapshot, now: Clocks) -> None:
        """Take note of the group's state. Raises `FencedError` if a later process goes by this member's id, and
        `DataLossError` if this is another table, which does not know how far the group has read."""
        if self.table is not None and snapshot.table is not None and not snapshot.table.covers({self.table.id}):
            self.holdings, self._own = {}, []
            raise DataLossError(
                "while this query ran somebody has made another lease table at the place of its own, which does not "
                "know how far the group has read: start the query again, which then says how to go on"
            )
        long = self.settings.lease_duration / 2
        if self._silenced(now) or now.monotonic - self._looked > long:
            # Who has not looked for long, because the store was away or this process stood still, has not seen
            # whether others were alive meanwhile; who cannot write for long must think that of others too. Everybody
            # gets a full lease duration again.
            self._observations = self._observations.afresh()
        if self._snapshot is None or self._snapshot.version != snapshot.version:
            self._moved = now.monotonic
        elif now.monotonic - self._moved > long:
            self.assured = now.monotonic
        self._looked_before, self._looked, self._snapshot = self._looked, now.monotonic, snapshot
        self._observations = self._observations.updated(snapshot, now.monotonic)
        if not self._joined:
            return
        row = snapshot.members.get(self.author.id)
        if row is not None and row.incarnation != self.author.incarnation and row.joined >= self._number:
            self.holdings, self._own = {}, []
            raise FencedError(
                f"a later process (on {row.host or 'an unknown host'}) has started as {self.author.id}, from the same "
                "Spark checkpoint: this one stops"
            )
        self._leaving = row is not None and row.state is MemberState.LEAVING
        lost = self._lost(snapshot, now.wall_ms)
        if lost and not self._told:
            _LOG.warning(
                "somebody has taken partitions %s out of the lease table, or set them back: they are put back as last "
                "seen, and reading goes on", ", ".join(each.partition for each in lost),
            )  # fmt: skip
        self._told = bool(lost)
        self._say_again(snapshot)
        self._hold(self._mended(snapshot, now.wall_ms), now)

    def measure(self, loads: Mapping[str, Load], load: MemberLoad | None = None) -> None:
        """What the partitions bring in, written along with the next renewals, and what this member carries in all,
        with the next heartbeat."""
        self._loads, self._load = loads, load

    def finish(self, partition: str, finished: Progress) -> None:
        """The sink has finished `partition` up to a position; a later one replaces an earlier one not yet written."""
        self._finished[partition] = finished

    def reset(self, partition: str, to: Progress) -> None:
        """Reading of `partition` goes on at a position that may be further back than its checkpoint."""
        self._resets[partition] = to
        self._finished.pop(partition, None)

    def leave(self) -> None:
        """Until the next look take nothing, and give back everything that is not in the batch in flight."""
        self._leaving = True

    # --- what goes out -----------------------------------------------------------------------------------------

    def renewal_due(self) -> float:
        """The monotonic time at which the next commit must be under way."""
        return min(self._oldest, self._heartbeat) + self.settings.renewal_interval

    def plannable(self) -> dict[str, Holding]:
        """What new batches may be planned with: all but what is to be given away."""
        if self._leaving or self.stalled:
            return {}
        return {partition: holding for partition, holding in self.holdings.items() if not holding.handover_pending}

    def waits(self, snapshot: Snapshot) -> bool:
        """Whether a handover is pending that concerns this member: time to look more often."""
        me, leases = self.author.id, snapshot.leases
        return any(me in (leases[p].owner, handover.to) for p, handover in snapshot.ownership.pending.items())

    def leads(self, snapshot: Snapshot, now: Clocks) -> bool:
        """Whether this member is the group's leader, or would be if those without a sign of life were gone."""
        times = (now.monotonic, now.wall_ms, self.settings.lease_duration)
        return self._leads(snapshot, expired_members(self._observations, snapshot, *times))

    def unsettled(self, snapshot: Snapshot, now: Clocks) -> bool:
        """Whether there is reason to balance before the next cycle: members or leases have changed since the last
        one, or somebody's time has run out."""
        if self._ownership is not snapshot.ownership and self._ownership != snapshot.ownership:
            return True
        times = (now.monotonic, now.wall_ms, self.settings.lease_duration)
        return bool(
            expired_leases(self._observations, snapshot, *times)
            or overdue_handovers(self._observations, snapshot, now.monotonic)
        )

    def say(self, snapshot: Snapshot, now: Clocks) -> list[Transition]:
        """Everything that is to be said without balancing: join, heartbeat, checkpoints, what is given away, renewals.

        Renewals go along with every commit once half their time has passed, so that few commits are for them alone.
        """
        by, at_ms = self.author, now.wall_ms
        said = self._joining(snapshot, at_ms)
        if not self._joined:
            said += self._checkpoints(at_ms)
            return said + self._resumed(apply(snapshot, said).after, at_ms)
        due = now.monotonic - self.settings.renewal_interval / 2
        said += self._lost(snapshot, at_ms)
        if self._heartbeat <= due and self.author.id in snapshot.members:
            said.append(Heartbeat(by=by, at_ms=at_ms, load=self._load))
        said += self._checkpoints(at_ms)
        for partition, holding in self.holdings.items():
            epoch, at_rest = holding.epoch, partition not in self.in_flight
            if self.stalled or (self._leaving and at_rest):
                said.append(Release(by=by, at_ms=at_ms, partition=partition, epoch=epoch))
            elif holding.handover_pending and at_rest:
                said.append(HandOver(by=by, at_ms=at_ms, partition=partition, epoch=epoch))
            elif holding.renewed <= due and partition not in self._finished:  # a checkpoint is a renewal
                load = self._news(partition)
                said.append(Renew(by=by, at_ms=at_ms, partition=partition, epoch=epoch, load=load))
        return said

    def balance(
        self, snapshot: Snapshot, now: Clocks, partitions: tuple[str, ...], first: Callable[[str], Position]
    ) -> tuple[list[Transition], Decision]:
        """All of `say`, and what the strategy decides.

        `partitions` are those that the hub has now; `first` tells where a partition that came up later begins.
        """
        said = self.say(snapshot, now)
        self.view = None
        if not self._joined:
            # First be seen, then look who else is there, then decide: members who start together share at once.
            return said, Decision("nothing yet, because this member is joining", rebalance_now=True)
        by, at_ms = self.author, now.wall_ms
        mended = self._mended(snapshot, at_ms)
        known = bool(mended.leases)
        if not mended.covers(partitions):
            for partition in (each for each in partitions if each not in mended.leases):
                # A partition that is added while the group is at work is read from its first event, as Kafka's are.
                checkpoint = first(partition) if known else None
                said.append(AddPartitions(by=by, at_ms=at_ms, partitions=(partition,), checkpoint=checkpoint))
        self._ownership = snapshot.ownership
        if is_routine(said):
            draft, observations = snapshot, self._observations  # nothing that a strategy goes by is changed by it
        else:
            draft = apply(snapshot, said).after
            observations = self._observations.updated(draft, now.monotonic)
        times = (now.monotonic, now.wall_ms, self.settings.lease_duration)
        dead = expired_members(observations, draft, *times) - {by.id}
        view = View(
            me=by,
            at_ms=at_ms,
            snapshot=draft,
            expired=expired_leases(observations, draft, *times).difference(self.holdings),  # they are being renewed
            live=draft.member_ids - dead if dead else draft.member_ids,
            rng=self._rng,
            max_owned=self.settings.max_owned,
            overdue=overdue_handovers(observations, draft, now.monotonic),
            tenured=tenured_leases(observations, draft, now.monotonic, self.settings.minimum_tenure),
            handover_timeout_ms=round(self.settings.handover_timeout * 1000),
            now=now.monotonic,
            observations=observations,
            lease_duration=self.settings.lease_duration,
            memory=self._memory,
        )
        decision = self._decide(view)
        self.view = view
        self._memory = decision.memory
        said += decision.transitions
        if self._leads(draft, dead):
            said += [
                Forget(by=by, at_ms=at_ms, member=member, counter=draft.members[member].counter)
                for member in sorted(dead)
                if not draft.owned_by(member)
            ]
        return said, decision

    def farewell(self, now: Clocks) -> list[Transition]:
        """The last words: checkpoints, then all leases given back, then the membership."""
        by, at_ms = self.author, now.wall_ms
        said = self._checkpoints(at_ms)
        for partition, holding in self.holdings.items():
            if holding.handover_pending:
                said.append(HandOver(by=by, at_ms=at_ms, partition=partition, epoch=holding.epoch))
            # Refused after a handover, whose epoch is another; not if the next owner has left meanwhile.
            said.append(Release(by=by, at_ms=at_ms, partition=partition, epoch=holding.epoch))
        return [*said, Leave(by=by, at_ms=at_ms)] if self._joined else []

    def unwritten(self) -> None:
        """A commit has failed, though the table could be read."""
        self._mute = True

    def written(self, outcome: Outcome, now: Clocks) -> None:
        """What became of the last commit.

        `now` is a time from before the commit, so that a lease is never believed in for longer than others do.
        """
        accepted, snapshot = outcome.accepted, outcome.after
        if not accepted and not outcome.refused and snapshot is self._snapshot:
            return
        self._say_again(snapshot)  # another may have been quicker to put something back
        renewed: set[str] = set()
        for transition in accepted:
            self._answered(transition)
            if type(transition) in _RENEWING:
                assert isinstance(transition, LeaseTransition)
                renewed.add(transition.partition)
            if isinstance(transition, (Join, Heartbeat)):
                self._heartbeat = now.monotonic
        for refused in outcome.refused:
            self._answered(refused.transition)
            if isinstance(refused.transition, Checkpoint):
                partition = refused.transition.partition
                _LOG.info("partition %s: checkpoint refused: %s", partition, refused.reason)
        row = snapshot.members.get(self.author.id)
        if row is not None and row.incarnation == self.author.incarnation:
            self._joined, self._number = True, row.joined
        if not self._silenced(now):
            self._observations = self._observations.updated(snapshot, now.monotonic)
        elif accepted:
            # Others' time is counted from the next look, before which they have all been able to see this commit.
            self._observations = self._observations.afresh()
        if accepted:
            self._mute, self._wrote = False, now.monotonic
        self._hold(snapshot, now, renewed)

    # --- inside ------------------------------------------------------------------------------------------------

    def _answered(self, transition: Transition) -> None:
        """The store has accepted or refused `transition`: it need not be asked for again."""
        if isinstance(transition, Checkpoint):
            if self._finished.get(transition.partition) == Progress(transition.epoch, transition.position):
                del self._finished[transition.partition]
        elif isinstance(transition, Reset):
            self._resets.pop(transition.partition, None)

    def _silenced(self, now: Clocks) -> bool:
        """Whether it has not been able to write for so long that others who are alive may not have been either."""
        return self._mute and now.monotonic - self._wrote > self.settings.short_spell

    def _joining(self, snapshot: Snapshot, at_ms: int) -> list[Transition]:
        """To be a member (again)."""
        row = snapshot.members.get(self.author.id)
        if self._joined and row is not None and row.incarnation == self.author.incarnation:
            return []
        settings = self.settings
        return [
            Join(
                by=self.author,
                at_ms=at_ms,
                host=settings.host,
                max_owned=settings.max_owned,
                strategy=settings.strategy_name,
            )
        ]

    def _say_again(self, snapshot: Snapshot) -> None:
        """Checkpoints of its own that the table had and has no more, as whoever has put them back had seen less."""
        for lease in [] if snapshot.last_changed else self._own:
            found, known = snapshot.leases.get(lease.partition), lease.checkpoint
            if found is None or (found.owner, found.epoch) != (lease.owner, lease.epoch):
                continue
            behind = found.checkpoint and known and found.checkpoint.sequence_number < known.sequence_number
            if known and behind and lease.partition not in self._resets:
                self._finished.setdefault(lease.partition, Progress(lease.epoch, known))

    def _lost(self, snapshot: Snapshot, at_ms: int) -> list[PutBack]:
        """What the table does not know any more, or only as it was before, though this member has seen it there. Where
        a snapshot has a trail nobody else can write the table."""
        if snapshot.leases is self._leases or snapshot.last_changed is not None:
            return []
        return [
            PutBack(by=self.author, at_ms=at_ms, lease=lease, table=self.table)
            for partition, lease in self._leases.items()
            if (found := snapshot.leases.get(partition)) is None or found.epoch < lease.epoch
        ]

    def _mended(self, snapshot: Snapshot, at_ms: int) -> Snapshot:
        """`snapshot` as it will be when everything that is lost is put back."""
        lost = self._lost(snapshot, at_ms)
        return apply(snapshot, [*self._joining(snapshot, at_ms), *lost]).after if lost else snapshot

    def _decide(self, view: View) -> Decision:
        if self.stalled:
            return Decision("nothing, because the query hangs")
        if self._leaving:
            return Decision("nothing, because this member is leaving")
        return with_overrides(self.settings.strategy)(view)

    def _leads(self, snapshot: Snapshot, dead: frozenset[str]) -> bool:
        if not dead:
            return snapshot.leader == self.author.id
        there = {id: member for id, member in snapshot.members.items() if id not in dead or id == self.author.id}
        return replace(snapshot, members=there).leader == self.author.id

    def _hold(self, snapshot: Snapshot, now: Clocks, renewed: set[str] | None = None) -> None:
        own, holdings, seen = snapshot.owned_by(self.author.id), {}, self._leases
        self._leases, self.table = snapshot.leases, snapshot.table or self.table
        if own == self._own and not renewed:
            return
        self._own = own
        for lease in own:
            partition = lease.partition
            before, again = self.holdings.get(partition), renewed is not None and partition in renewed
            if before is not None and not again and seen.get(partition) is lease:
                holdings[partition] = before
                continue
            assert lease.checkpoint is not None, "a claim without a position is refused"
            kept = before is not None and before.epoch == lease.epoch and not again
            # Who gives something away counts from then on, which was after the look before this one.
            given = now.monotonic if renewed is not None else self._looked_before
            renewed_at = before.renewed if kept and before is not None else given
            if renewed is None and before is not None and not kept:
                _LOG.info(
                    "partition %s: goes on at %d with epoch %d, as somebody else has decided",
                    lease.partition, lease.checkpoint.next, lease.epoch,
                )  # fmt: skip
            holdings[partition] = Holding(lease.epoch, lease.checkpoint, renewed_at, lease.handover is not None)
        for partition in sorted(self.holdings.keys() - holdings.keys()):
            lease_now = snapshot.leases.get(partition)  # a table made anew has none
            _LOG.info("partition %s: no longer owned, now by %s", partition, lease_now and lease_now.owner)
        self.holdings = holdings
        self._oldest = min((holding.renewed for holding in holdings.values()), default=float("inf"))

    def _checkpoints(self, at_ms: int) -> list[Transition]:
        """Where reading has come to: resets first, as checkpoints go on from there."""
        resets: list[Transition] = [
            Reset(by=self.author, at_ms=at_ms, partition=p, epoch=to.epoch, position=to.position)
            for p, to in self._resets.items()
        ]
        return resets + [
            Checkpoint(
                by=self.author,
                at_ms=at_ms,
                partition=p,
                epoch=done.epoch,
                position=done.position,
                load=self._news(p),
            )
            for p, done in self._finished.items()
        ]

    def _news(self, partition: str) -> Load | None:
        """The load of `partition` if the table has another; None: it stands."""
        load, lease = self._loads.get(partition), self._leases.get(partition)
        if load is None or lease is None or lease.load is None:
            return load
        known = lease.load
        differs = abs(load.rate - known.rate) + abs(load.backlog - known.backlog) / _BACKLOG_SECONDS
        return load if differs > max(_NEWS * (known.rate + known.backlog / _BACKLOG_SECONDS), _LEAST_NEWS) else None

    def _resumed(self, snapshot: Snapshot, at_ms: int) -> list[Transition]:
        """Claims of what an earlier life of this member had: each start goes on with a new epoch, which fences it.

        What is more than it may own by now is given back, though not what it was reading, as far as it may have that;
        and what is promised to it beyond that is called off.
        """
        by, again, limit = self.author, [], self.settings.max_owned
        candidates = {lease.partition for lease in snapshot.owned_by(by.id)} | self._resume.keys()
        for partition in sorted(candidates & snapshot.leases.keys(), key=partition_order):
            lease = snapshot.leases[partition]
            reading = lease.checkpoint is not None and self._resume.get(partition) == lease.checkpoint.next
            if lease.owner == by.id or (lease.owner is None and reading):
                again.append((not reading, lease))
        own = [lease for _, lease in sorted(again, key=lambda each: each[0])]
        kept = own[:limit]
        said: list[Transition] = []
        for lease in own[len(kept) :]:  # first of all, as nothing more can be claimed before
            said.append(Claim(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch))
            said.append(Release(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch + 1))
        if limit is not None:
            promised = [p for p, each in snapshot.ownership.pending.items() if each.to == by.id]
            said += [
                CancelHandover(by=by, at_ms=at_ms, partition=p, epoch=snapshot.leases[p].epoch)
                for p in promised[limit - len(kept) :]
            ]
        return said + [Claim(by=by, at_ms=at_ms, partition=each.partition, epoch=each.epoch) for each in kept]


def unread(said: Iterable[Transition], snapshot: Snapshot) -> list[str]:
    """The partitions claimed in `said` that were never read, and whose starting position is to be found."""
    claims = [each for each in said if type(each) is Claim and each.starting_position is None]
    return [
        each.partition
        for each in claims
        if (lease := snapshot.leases.get(each.partition)) is None or lease.checkpoint is None
    ]


def with_starts(said: Iterable[Transition], starts: Mapping[str, Position]) -> list[Transition]:
    """`said`, where the claims of partitions that were never read also say where reading starts."""
    return [
        replace(each, starting_position=starts[each.partition])
        if isinstance(each, Claim) and each.partition in starts
        else each
        for each in said
    ]


def startable(
    said: list[Transition], snapshot: Snapshot, starts: Callable[[Sequence[str]], Mapping[str, Position]]
) -> tuple[list[Transition], bool]:
    """What of `said` can be written with this commit, with the positions that `starts` finds for partitions that were
    never read, and whether there are more of them for the next one."""
    first = unread(said, snapshot)
    if not first:
        return said, False
    later = frozenset(first[_MOST_STARTS:])
    said = [each for each in said if not (isinstance(each, Claim) and each.partition in later)]
    return with_starts(said, starts(first[:_MOST_STARTS])), bool(later)
