"""The lease keeper: one thread per running source that keeps its membership alive and its leases held.

It shares no process with data processing, so a busy query is never too slow to hold its leases. All decisions are
made by `Membership` and the strategy; here are the clocks, the store and the waiting.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spark_ehbalance.errors import ConflictError, EhBalanceError, HubUnavailableError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange, ownership_changes
from spark_ehbalance.leases.model import Load, MemberLoad, MemberState, TableIdentity
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Drain, Transition
from spark_ehbalance.member.decision_log import DecisionLog, Shortage, view_line
from spark_ehbalance.member.membership import Clocks, Holding, Membership, Progress, in_force, startable
from spark_ehbalance.member.pacing import FIRST_PAUSE, Pacing
from spark_ehbalance.stores.base import LONGEST_RETRY_WAIT, LeaseStore, commit
from spark_ehbalance.strategies.base import Decision, View
from spark_ehbalance.values.position import Position

_LOG = logging.getLogger(__name__)

#: The leader tidies the store up after so many versions or so many seconds, whichever comes first: often enough for a
#: few hundred files, seldom enough to cost nothing (30 ms against 300 commits of 10 ms).
_TIDY_VERSIONS, _TIDY_INTERVAL = 300, 30.0

#: Seconds between two reports of how often which decision was made for what reason.
_TALLY_INTERVAL = 600.0

#: Seconds that `stop` waits for the last commit. Spark kills the planner some time after that.
_FAREWELL_TIMEOUT = 5.0


def tidying_due(versions: int, passed: float) -> bool:
    """Whether the leader is to tidy up, so many versions and seconds after it last did."""
    return versions >= _TIDY_VERSIONS or (versions > 0 and passed >= _TIDY_INTERVAL)


class Hub(Protocol):
    """What the keeper asks about the hub. Both calls raise `HubUnavailableError`."""

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions at present."""

    def starting_positions(self, partitions: Sequence[str]) -> Mapping[str, Position]:
        """Where the reading of partitions begins that nobody has read before."""

    def earliest_position(self, partition: str) -> Position:
        """The position before the first retained event."""


class Keeper:
    """Keeps one membership. The thread starts with `start` and ends with `stop`; everything else may be called from
    any thread and never waits for the store."""

    def __init__(
        self,
        membership: Membership,
        open_store: Callable[[], LeaseStore],
        hub: Hub,
        *,
        balance_interval: float,
        reactive: bool = False,
        max_stall: float | None = None,
        rng: random.Random,
        changed: threading.Event | None = None,
    ) -> None:
        """`changed` is set when what `holdings` says may have changed, but for what the passing of time does."""
        self._membership = membership
        self._open_store = open_store
        self._hub = hub
        self._interval = balance_interval
        self._pacing = Pacing(balance_interval, membership.settings.renewal_interval, reactive=reactive, rng=rng)
        self._max_stall = max_stall
        self._lock = threading.Condition()
        self._holdings: Mapping[str, Holding] = {}
        self._finished: dict[str, Progress] = {}
        self._resets: dict[str, Progress] = {}
        self._in_flight: frozenset[str] = frozenset()
        self._batch_began = 0.0
        self._loads: Mapping[str, Load] = {}
        self._load: MemberLoad | None = None
        self._decisions = DecisionLog()
        self._shortage = Shortage()
        self._tally_at = time.monotonic() + _TALLY_INTERVAL
        self._leave = False
        self._drained = False  # by itself, because the query hangs
        self._looked = 0.0  # the last time that the store was asked, and whether it was away then
        self._away = False
        self._assured = membership.assured
        self._tidied = (0, 0.0)  # version and time
        self._cycles = 0
        self._settled = 0  # cycles in which there was nothing to take
        self._settling = False
        self._error: EhBalanceError | None = None
        self.members = 1  # how many share the hub, as of the last look
        self._changed = changed or threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ehbalance-keeper", daemon=True)

    # --- called by the planner ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It joins the group, takes back what an earlier life had, and balances."""
        self._thread.start()

    def stop(self) -> None:
        """Write the last checkpoints, give all leases back and leave the group; waits a few seconds at the most."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_TIMEOUT)

    def holdings(self) -> Mapping[str, Holding]:
        """The partitions that a batch may be planned with: owned, not promised to another, and renewed within the
        lease duration.

        While the store is away, or nobody can write it, they stay, as nobody else can take them in the table either,
        and the hub's epochs still keep two readers apart. Raises what has ended the keeper: `FencedError`,
        `StoreFormatError`.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            now = time.monotonic()
            trying = self._away and now - self._looked < 2 * self._interval  # not stopped and woken up long after
            return in_force(self._holdings, now, self._membership.settings, now if trying else self._assured)

    def reserve(self, epochs: Mapping[str, int]) -> frozenset[str]:
        """Begin a batch with these partitions, given with the epochs that it was planned with. Returns those that are
        still to be had; they stay until the batch is finished, unless they are taken by force."""
        with self._lock:
            held = (p for p, epoch in epochs.items() if p in self._holdings and self._holdings[p].epoch == epoch)
            self._in_flight, self._batch_began = frozenset(held), time.monotonic()
            return self._in_flight

    def finish(self, finished: Mapping[str, Progress]) -> None:
        """The batch is over, and the sink has finished these; they are checkpointed with the next commit."""
        with self._lock:
            self._finished |= finished
            self._in_flight = frozenset()
            self._lock.notify_all()

    def reset(self, resets: Mapping[str, Progress]) -> None:
        """Reading goes on at these positions, which may be further back than the checkpoints."""
        with self._lock:
            self._resets |= resets
            self._lock.notify_all()

    def measure(self, loads: Mapping[str, Load], load: MemberLoad | None = None) -> None:
        """What the owned partitions bring in and what this member carries in all, as moving averages."""
        with self._lock:
            self._loads, self._load = loads, load

    def leave(self) -> None:
        """Take nothing more, and give everything back as soon as the batch in flight has ended."""
        with self._lock:
            self._leave = True
            self._pacing.look_at = 0.0
            self._lock.notify_all()

    @property
    def table(self) -> TableIdentity | None:
        """Which lease table it is, as of the last look; None where none has an identity."""
        return self._membership.table

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do: nothing owned, no batch in flight, nothing to write."""
        with self._lock:
            return not (self._membership.holdings or self._in_flight or self._finished)

    def wait_balanced(self, timeout: float, *, settled: bool = False) -> bool:
        """Wait until one cycle of balancing is over or, if `settled`, until cycle upon cycle, without the usual
        interval between them, there is nothing more to take. False if `timeout` seconds were not enough.

        Raises what has ended the keeper.
        """
        with self._lock:
            before = self._settled if settled else 0
            if settled:
                self._settling, self._pacing.balance_at = True, 0.0
                self._lock.notify_all()
            self._lock.wait_for(
                lambda: self._error is not None or (self._settled if settled else self._cycles) > before, timeout
            )
            self._settling = False
            if self._error is not None:
                raise self._error
            return (self._settled if settled else self._cycles) > before

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open_store() as store:
                self._keep(store)
        except EhBalanceError as error:
            self._fail(error)
        except BaseException as error:  # also a panic in a Rust library: nobody else would hear of this thread's end
            _LOG.exception("the lease keeper has failed")
            self._fail(
                EhBalanceError(
                    "the lease keeper has failed, and the query with it; others take its partitions after "
                    f"leaseDuration: {error!r}"
                )
            )

    def _keep(self, store: LeaseStore) -> None:
        pause, failures = 0.0, 0
        last_moment = float("inf")
        while True:
            stopping = self._wait(pause)
            began = time.monotonic()
            if stopping:
                last_moment = min(last_moment, began + _FAREWELL_TIMEOUT)
            try:
                self._turn(store, stopping)
                pause = 0.0
                if failures:
                    _LOG.warning("the lease table is back after %d tries", failures)
                failures = 0
                if stopping:
                    _LOG.info("%s", self._decisions.tally())
                    return
            except ConflictError:
                pause = self._pacing.jittered(LONGEST_RETRY_WAIT)
                _LOG.info("the lease table is contended: trying again later")
            except StoreUnavailableError as error:
                failures += 1
                pause = self._pacing.pause(failures)
                level = logging.WARNING if failures == 1 else logging.INFO
                _LOG.log(level, "%s. What is owned is read on; until that is over nothing is taken or given", error)
            if stopping:
                if time.monotonic() > last_moment:
                    return
                time.sleep(FIRST_PAUSE)

    def _wait(self, pause: float) -> bool:
        """Wait until there is something to do, at least for `pause`; True if it is to stop."""
        with self._lock:
            deadline = time.monotonic() + pause
            while not self._stopping:
                due = self._pacing.due(self._membership.renewal_due(), finished=bool(self._finished))
                if self._resets:
                    due = 0.0
                remaining = max(due, deadline) - time.monotonic()
                if remaining <= 0:
                    break
                self._lock.wait(remaining)
            return self._stopping

    def _turn(self, store: LeaseStore, stopping: bool) -> None:
        """Look, decide, commit."""
        member, decision = self._membership, None
        snapshot, now = self._look(store), _clocks()
        member.see(snapshot, now)
        with self._lock:
            self._looked, self._away, self._assured = now.monotonic, False, member.assured
            # From here on no batch is planned with what is given away below. What has finished is taken over in the
            # same moment as what is in flight: a handover without the final checkpoint would be read twice.
            self._take_over()
            member.in_flight = self._in_flight
            member.measure(self._loads, self._load)
            leaving = self._leave
            if leaving:
                member.leave()
            self._check_stall(now.monotonic)
            self._hold(member.plannable())
        if stopping:
            said = member.farewell(now)
        elif self._pacing.balances(now.monotonic, lambda: member.unsettled(snapshot, now)):
            said, decision = self._balance(snapshot, now)
        else:
            said = member.say(snapshot, now)
        if not stopping:
            said += self._drain(snapshot, now, leaving)
            said = self._pacing.admit(said, now.monotonic, member.renewal_due())
        before, began = snapshot, time.monotonic()
        try:
            outcome = commit(store, snapshot, said)
        except StoreUnavailableError:
            member.unwritten()
            raise
        snapshot = outcome.after
        took = time.monotonic() - began if snapshot.version != before.version else None
        member.written(outcome, now)
        self._keep_house(store, ownership_changes(outcome), snapshot, now)
        waits = member.waits(snapshot)
        with self._lock:
            self._hold(member.plannable())
            self.members = len(snapshot.members)
            if decision is not None:
                decision = replace(
                    decision, rebalance_now=decision.rebalance_now or (self._settling and bool(decision.transitions))
                )
                self._cycles += not decision.rebalance_now
                self._settled += not (decision.rebalance_now or decision.rebalance_after is not None or waits)
            self._pacing.turned(now.monotonic, members=len(snapshot.members), waits=waits, took=took, decision=decision)
            self._lock.notify_all()

    def _look(self, store: LeaseStore) -> Snapshot:
        try:
            return store.read()
        except StoreUnavailableError:
            with self._lock:
                self._looked, self._away = time.monotonic(), True
            raise

    def _drain(self, snapshot: Snapshot, now: Clocks, leaving: bool) -> list[Transition]:
        """Tell the others to take what this member gives back: for good, or as long as the query hangs."""
        member, row = self._membership, snapshot.members.get(self._membership.author.id)
        drain = Drain(by=member.author, at_ms=now.wall_ms, member=member.author.id)
        if leaving:
            return [drain]
        if row is None:
            return []
        active = row.state is MemberState.ACTIVE
        if member.stalled and active:
            self._drained = True
            return [drain]
        self._drained = self._drained and not active  # not what an operator has said
        return [replace(drain, undo=True)] if self._drained and not member.stalled else []

    def _take_over(self) -> None:
        """Pass on to the membership what the planner has said since the last turn."""
        for partition, to in self._resets.items():
            self._membership.reset(partition, to)
        for partition, finished in self._finished.items():
            self._membership.finish(partition, finished)
        self._resets, self._finished = {}, {}

    def _keep_house(self, store: LeaseStore, changes: list[OwnershipChange], snapshot: Snapshot, now: Clocks) -> None:
        """What no lease depends on: write history and, as the leader, tidy up."""
        try:
            if changes:
                store.record(changes)
            versions, passed = snapshot.version - self._tidied[0], now.monotonic - self._tidied[1]
            if tidying_due(versions, passed) and self._membership.leads(snapshot, now):
                self._tidied = (snapshot.version, now.monotonic)
                store.tidy()
        except StoreUnavailableError as error:
            _LOG.info("%s", error)

    def _check_stall(self, now: float) -> None:
        """Let go of everything while a batch takes longer than it may."""
        ran = now - self._batch_began
        hangs = self._max_stall is not None and bool(self._in_flight) and ran > self._max_stall
        if hangs and not self._membership.stalled:
            _LOG.error(
                "the batch has run for %.0f s, longer than maxStall=%g s: giving back partitions %s. The query goes on "
                "owning nothing until the batch ends",
                ran, self._max_stall, ", ".join(self._membership.holdings),
            )  # fmt: skip
        elif self._membership.stalled and not hangs:
            _LOG.warning("the batch that took too long has ended: taking part again")
        self._membership.stalled = hangs

    def _balance(self, snapshot: Snapshot, now: Clocks) -> tuple[list[Transition], Decision]:
        member, hub = self._membership, self._hub
        try:
            said, decision = member.balance(snapshot, now, hub.partition_ids(), hub.earliest_position)
            said, later = startable(said, snapshot, hub.starting_positions)
            decision = replace(decision, rebalance_now=decision.rebalance_now or later)
            view = member.view
        except HubUnavailableError as error:
            _LOG.warning("%s. Until that is over no partition is taken", error)
            said, decision = member.say(snapshot, now), Decision("nothing, because the hub does not answer")
            view = None
        self._tell(view, decision)
        return said, decision

    def _tell(self, view: View | None, decision: Decision) -> None:
        """Log what was decided and why, and now and then how often."""
        level, line = self._decisions.note(self._membership.author.id, view, decision)
        _LOG.log(level, "%s", line)
        # Who waits for the group to settle reads what there is then, and may have ended before others have started.
        if view is not None and (warning := self._shortage.note(view, at_once=self._settling)):
            _LOG.warning("%s", warning)
        if view is not None and _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s", view_line(view))
        if time.monotonic() >= self._tally_at:
            self._tally_at = time.monotonic() + _TALLY_INTERVAL
            _LOG.info("%s", self._decisions.tally())

    def _hold(self, holdings: Mapping[str, Holding]) -> None:
        if holdings != self._holdings:
            self._holdings = holdings
            self._changed.set()

    def _fail(self, error: EhBalanceError) -> None:
        with self._lock:
            self._error, self._holdings = error, {}
            self._changed.set()
            self._lock.notify_all()


def _clocks() -> Clocks:
    return Clocks(time.monotonic(), time.time_ns() // 1_000_000)
