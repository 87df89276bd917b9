"""The lease keeper: one thread per running source that keeps its membership alive and its leases held.

It shares no process with data processing, so a busy query is never too slow to hold its leases. What is done in a turn
is decided by `Participant`; here are the clocks, the store, the hub, the lock and the waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from spark_ehbalance.errors import ConflictError, EhBalanceError, HubUnavailableError, StoreUnavailableError
from spark_ehbalance.group.changes import Outcome
from spark_ehbalance.group.history import OwnershipChange, ownership_changes
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.member.counts import Counts
from spark_ehbalance.group.member.decision_log import DecisionLog, Shortage
from spark_ehbalance.group.member.lags import LagOf, current
from spark_ehbalance.group.member.membership import Clocks, Holding
from spark_ehbalance.group.member.pacing import FIRST_PAUSE
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.member.turn import Participant, Turn
from spark_ehbalance.group.model import Lease, Load, MemberLoad, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import ATTEMPTS, LeaseStore, commit
from spark_ehbalance.query.housekeeping import Housekeeping
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds that `stop` waits for the last commit. Spark kills the planner some time after that.
_SHUTDOWN_TIMEOUT = 5.0


class Hub(Protocol):
    """What the keeper asks the hub. All calls may raise `HubUnavailableError`."""

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's current partitions."""

    def created_ms(self) -> int | None:
        """When the hub was created, in milliseconds since 1970, as of the last `partition_ids`; None if it does not
        tell. Raises nothing."""

    def starting_positions(self, partitions: Sequence[str], latest_ms: int, /) -> Mapping[str, Position]:
        """Where reading starts in partitions that were never read, if `latest` means that moment of the hub's clock.
        Partitions for which the hub gave no answer are left out."""

    def clear(self, owner_levels: Mapping[str, int], /) -> None:
        """Disconnect whoever reads these partitions with the given owner level or a lower one. Raises nothing."""


class Keeper:
    """Keeps one query's part in its group alive. The thread starts with `start` and ends with `stop`; all other calls
    may come from any thread and never wait for the store."""

    def __init__(
        self,
        participant: Participant,
        open_store: Callable[[], LeaseStore],
        hub: Hub,
        *,
        changed: threading.Event | None = None,
        lag_of: LagOf | None = None,
    ) -> None:
        """The thread opens the store. `changed` is set when the result of `holdings` may have changed other than by the
        passing of time. `lag_of` tells what is unread, for the store and for `lags`."""
        self._participant = participant
        self._query, self._me = participant.query, participant.author.id
        self._open_store = open_store
        self._hub = hub
        self._lag_of = lag_of
        self.changed = changed or threading.Event()
        self._lock = threading.Condition()
        self._error: EhBalanceError | None = None
        self._stopping = False
        self._looks_begun = self._looks_ended = 0
        self._decisions, self._shortage = DecisionLog(), Shortage()
        self.counts = Counts()
        self._recording, self._tidying = Housekeeping(), Housekeeping()  # to tidy up can take long
        self._thread = threading.Thread(target=self._run, name="ehbalance-keeper", daemon=True)

    # --- called by the planner ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It joins the group, takes back what an earlier process had, and balances."""
        self._thread.start()

    def stop(self) -> None:
        """Commit the last progress, give all leases back and leave the group; waits a few seconds at most. Not called
        on SIGKILL: the leases then expire."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(_SHUTDOWN_TIMEOUT)

    def holdings(self) -> Mapping[str, Holding]:
        """The partitions that a batch may be planned with: owned, with no handover pending, and renewed within the
        lease duration; see `Participant.holdings` for the time that the store is away.

        Raises what has ended the keeper: `FencedError`, `DataLossError`, `StoreFormatError`.
        """
        with self._lock:
            self._check()
            return self._participant.holdings(time.monotonic())

    def reserve(self, epochs: Mapping[str, int]) -> frozenset[str]:
        """Begin a batch with these partitions, given with the epochs that it was planned with. Returns those that may
        be read; they are kept until the batch is finished, unless another member takes them by force."""
        with self._lock:
            return self._participant.reserve({} if self._error else epochs, time.monotonic())

    def begin(self, batch: int, planner: str) -> None:
        """The sink is given the batch with this number, planned by that run, which the next commit tells the table."""
        with self._lock:
            self._query.begin(batch, planner)

    def finish(self, progress: Mapping[str, Progress], batch: int = 0) -> None:
        """The batch with this number has ended, and the sink has finished `progress`, which is checkpointed with the
        next commit."""
        with self._changing():
            self._query.finish(progress, batch)

    def reset(self, resets: Mapping[str, Progress]) -> None:
        """Reading goes on at these positions, which may be further back than the checkpoints."""
        with self._changing():
            self._query.reset(resets)

    def measure(self, loads: Mapping[str, Load], load: MemberLoad | None = None) -> None:
        """The moving averages of the loads of owned partitions, and of the member; written with the next renewals."""
        with self._lock:
            self._query.loads, self._query.load = loads, load

    def lags(self) -> dict[str, Lag]:
        """What is unread of each owned partition after what the sink has finished, as far as the hub has told. Raises
        what has ended the keeper."""
        with self._lock:
            self._check()
            leases, waiting = self._participant.leases, self._query.progress | self._query.resets
            positions = {p: each.checkpoint for p, each in self._participant.owned.items()} | {
                p: each.position for p, each in waiting.items() if self._owned(p, each.epoch)
            }
        lag_of = self._lag_of or (lambda partition, next: None)
        found = {p: current(lag_of, leases.get(p), p, position.next) for p, position in positions.items()}
        return {partition: lag for partition, lag in found.items() if lag is not None}

    def asked(self, at_ms: int, left_out: Mapping[str, str]) -> None:
        """Spark has asked for a batch at that time, and these partitions were left out of it; see `Member`."""
        with self._lock:
            self._query.asked_ms, self._query.left_out = at_ms, left_out

    def leave(self) -> None:
        """Take nothing more, and give everything back as soon as the batch in flight has ended."""
        with self._changing():
            self._participant.leave()

    def look(self, timeout: float) -> Mapping[str, Lease] | None:
        """All leases, by a look that has begun after this call; None if that takes longer than `timeout` seconds.

        Raises what has ended the keeper.
        """
        with self._lock:
            wanted = self._looks_begun + 1
            self._participant.look_now()
            self._lock.notify_all()
            looked = self._wait_for(lambda: self._looks_ended >= wanted, timeout)
            return self._participant.leases if looked else None

    @property
    def table(self) -> TableIdentity | None:
        """Which lease table it is, as of the last look; None where a table has no identity."""
        return self._participant.table

    @property
    def known_begun(self) -> int:
        """The number of the query's last begun batch that the table contains."""
        return self._participant.known_begun

    @property
    def snapshot(self) -> Snapshot | None:
        """The group as of the last look, with the leases as of the last commit; None before the first look."""
        return self._participant.snapshot

    @property
    def batch_began(self) -> float | None:
        """When the batch in flight was begun (monotonic seconds); None if there is none."""
        return self._query.batch_began if self._query.in_flight else None

    @property
    def store_away(self) -> bool:
        """Whether the store could not be read or written when that was tried last."""
        return self._participant.failures > 0

    @property
    def members(self) -> int:
        """How many members share the hub, as of the last turn."""
        return self._participant.members

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do: nothing owned, no batch in flight, nothing to commit."""
        with self._lock:
            return self._participant.idle

    def wait_balanced(self, timeout: float, *, settled: bool = False, whole: bool = True) -> bool:
        """Wait until a balancing cycle has ended or, if `settled`, until cycle after cycle, without the usual interval
        between them, there is nothing more to take. Unless the `whole` share is wanted, until something is owned. False
        if that takes longer than `timeout` seconds.

        Raises what has ended the keeper.
        """
        participant = self._participant
        with self._lock:
            before = participant.settled_cycles if settled else 0

            def balanced() -> bool:
                if not whole and participant.owned:
                    return True
                return (participant.settled_cycles if settled else participant.cycles) > before

            return self._settle(balanced, timeout) if settled else self._wait_for(balanced, timeout)

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open_store() as store:
                try:
                    self._keep(store)
                finally:
                    give_up_at = time.monotonic() + _SHUTDOWN_TIMEOUT
                    self._recording.finish(_SHUTDOWN_TIMEOUT)
                    self._tidying.finish(max(0.0, give_up_at - time.monotonic()))
        except EhBalanceError as error:
            self._fail(error)
        except BaseException as error:  # also a panic in a Rust library: nobody else would notice this thread's end
            _LOG.exception("the lease keeper has failed")
            self._fail(
                EhBalanceError(
                    "the lease keeper has failed, and the query with it; others take its partitions after "
                    f"leaseDuration: {error!r}"
                )
            )

    def _keep(self, store: LeaseStore) -> None:
        pause, give_up_at = 0.0, float("inf")
        while True:
            stopping = self._wait(pause)
            if stopping:
                give_up_at = min(give_up_at, time.monotonic() + _SHUTDOWN_TIMEOUT)
            pause = self._try_turn(store, stopping)
            if stopping:
                if not pause or time.monotonic() > give_up_at:
                    return
                time.sleep(FIRST_PAUSE)

    def _wait(self, pause: float) -> bool:
        """Wait until the next turn is due, at least for `pause` seconds; True if it is the last one."""
        with self._lock:
            earliest = time.monotonic() + pause
            while not self._stopping:
                remaining = max(self._participant.due(), earliest) - time.monotonic()
                if remaining <= 0:
                    break
                self._lock.wait(remaining)
            return self._stopping

    def _try_turn(self, store: LeaseStore, stopping: bool) -> float:
        """Take a turn; how many seconds to wait at least before the next one, 0.0 if this one was successful."""
        failures = self._participant.failures
        try:
            self._turn(store, stopping)
        except ConflictError:
            self.counts.lost += ATTEMPTS
            _LOG.info("the lease table is contended: trying again later")
            return self._participant.contended_pause()
        except StoreUnavailableError as error:
            level = logging.INFO if failures else logging.WARNING
            _LOG.log(level, "%s. What is owned is read on; until that is over nothing is taken or given", error)
            return self._participant.pause()
        if failures:
            _LOG.warning("the lease table is back after %d tries", failures)
        return 0.0

    def _turn(self, store: LeaseStore, stopping: bool) -> None:
        participant = self._participant
        self._recording.check()
        self._tidying.check()
        with self._lock:
            self._looks_begun += 1
        try:
            snapshot = store.read()
        except StoreUnavailableError:
            with self._lock:
                participant.look_failed(time.monotonic())
            raise
        with self._changing():
            turn = participant.begin(snapshot, _clocks(), stopping=stopping)
            self._looks_ended = self._looks_begun
        if turn.balances:
            self._balance(turn)
        began = time.monotonic()
        try:
            outcome = commit(store, snapshot, turn.transitions(self._lag_of))
        except StoreUnavailableError:
            with self._lock:
                participant.commit_failed()
            raise
        ended = time.monotonic()
        with self._changing():
            participant.end(turn, outcome, ended - began, ended)
        self._keep_house(store, outcome, turn.now)

    def _balance(self, turn: Turn) -> None:
        hub = self._hub
        try:
            partitions = hub.partition_ids()
            if unread := turn.balance(partitions, hub.created_ms()):
                turn.start_at(hub.starting_positions(unread, turn.latest_ms))
        except HubUnavailableError as error:
            _LOG.warning("%s. Until that is over no partition is taken", error)
            turn.hub_unavailable()
        assert turn.decision is not None, "the turn balances"
        level, line = self._decisions.note(self._me, turn.view, turn.decision)
        _LOG.log(level, "%s", line)
        # A query that waits for the group to settle may end before others start: it warns at once.
        if turn.view is not None and (warning := self._shortage.note(turn.view, at_once=self._participant.settling)):
            _LOG.warning("%s", warning)

    def _keep_house(self, store: LeaseStore, outcome: Outcome, now: Clocks) -> None:
        """Have history recorded and, as the leader, the store tidied up: no lease depends on either."""
        changes = ownership_changes(outcome)
        self.counts.committed(outcome, changes)
        if changes:
            self._recording.do(partial(store.record, changes))
            if not store.capabilities.epochs:
                self._clear(store, changes)
        if not self._tidying.busy and self._participant.tidies(outcome.after, now):
            self._tidying.do(store.tidy)

    def _clear(self, store: LeaseStore, changes: Sequence[OwnershipChange]) -> None:
        """Disconnect the former owners of what was taken: where nothing else tells them, some read on until the next
        reader connects, and this query has none before there is something to read."""
        taken = [str(x.partition) for x in changes if x.owner == self._me and x.owner_before not in (None, self._me)]
        if taken:
            self._recording.do(partial(self._hub.clear, dict.fromkeys(taken, store.capabilities.owner_level(0))))

    # --- what the threads share --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait, with the lock, until `condition` holds; False after `timeout` seconds. Raises what has ended the
        keeper."""
        held = self._lock.wait_for(lambda: self._error is not None or condition(), timeout)
        self._check()
        return held

    def _settle(self, condition: Callable[[], bool], timeout: float) -> bool:
        """As `_wait_for`, and meanwhile balance again and again as long as there is something to take."""
        self._participant.settle()
        self._lock.notify_all()
        try:
            return self._wait_for(condition, timeout)
        finally:
            self._participant.settling = False

    def _owned(self, partition: str, epoch: int) -> Holding | None:
        """What this member owns of `partition`, if it still does so in that `epoch`."""
        holding = self._participant.owned.get(partition)
        return holding if holding is not None and holding.epoch == epoch else None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Have the lock, then wake the threads that wait, and tell the planner if its holdings have changed."""
        with self._lock:
            before = self._participant.plannable()
            yield
            if self._participant.plannable() != before:
                self.changed.set()
            self._lock.notify_all()

    def _fail(self, error: EhBalanceError) -> None:
        with self._lock:
            self._error = error
            self.changed.set()
            self._lock.notify_all()


def _clocks() -> Clocks:
    return Clocks(time.monotonic(), time.time_ns() // 1_000_000)
