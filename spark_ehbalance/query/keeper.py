"""The lease keeper: one thread per running source that keeps its membership alive and renews its leases.

It does not share a process with data processing, so a busy query never renews too late. `MemberEngine` makes the
decisions; this module provides the clocks, store, hub, lock and waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from spark_ehbalance.clock import monotonic
from spark_ehbalance.errors import ConflictError, EhBalanceError, HubUnavailableError, StoreUnavailableError
from spark_ehbalance.group.changes import Outcome, Transition
from spark_ehbalance.group.history import OwnershipChange, ownership_changes
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.member.counts import Counts
from spark_ehbalance.group.member.decision_log import DecisionLog, Shortage
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.lags import LagLookup, current, with_lags
from spark_ehbalance.group.member.membership import Clocks, OwnedLease
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import ATTEMPTS, LeaseStore, commit
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.housekeeping import Housekeeping
from spark_ehbalance.query.protocol import Input, Output
from spark_ehbalance.query.steps import Steps
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds that `stop` waits for the last commit. Spark kills the planner some time after that.
_SHUTDOWN_TIMEOUT = 5.0


class KeeperHub(Protocol):
    """The part of `HubWatcher` that the keeper uses."""

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions, as last known."""

    def created_ms(self) -> int | None:
        """The hub's creation time in milliseconds since 1970, as last known; None if unknown."""

    def starting_positions(self, partitions: Sequence[str], latest_ms: int, /) -> Mapping[str, Position]:
        """Starting positions of partitions that were never read; `latest` means `latest_ms` by the hub's clock.
        Partitions for which the hub does not answer are missing. Raises `HubUnavailableError` if it does not answer for
        any."""

    def disconnect_readers(self, owner_levels: Mapping[str, int], /) -> None:
        """Disconnect each partition's readers with this owner level or a lower one. Never raises an error."""


class Keeper:
    """Keeps one query's membership in its group alive. The thread starts with `start` and ends with `stop`; all other
    methods may be called from any thread and never wait for the store."""

    def __init__(
        self,
        engine: QueryEngine,
        open_store: Callable[[], LeaseStore],
        hub: KeeperHub,
        *,
        changed: threading.Event | None = None,
        find_lag: LagLookup | None = None,
    ) -> None:
        """The thread opens the store. `changed` is set when the result of `readable` may have changed, except when time
        alone changes it. `find_lag` returns a partition's lag, for the store and for `lags`."""
        self._steps = Steps(engine)
        self._engine = engine.member
        self._me = self._engine.author.id
        self._open_store = open_store
        self._hub = hub
        self._find_lag = find_lag
        self.changed = changed or threading.Event()
        self._lock = threading.Condition()
        self._error: EhBalanceError | None = None
        self._store_error: StoreUnavailableError | None = None
        self._give_up_at = float("inf")
        self._reads_begun = self._reads_ended = 0
        self._decisions, self._shortage = DecisionLog(), Shortage()
        self.counts = Counts()
        self._recording, self._tidying = Housekeeping(), Housekeeping()  # maintenance can take a long time
        self._thread = threading.Thread(target=self._run, name="ehbalance-keeper", daemon=True)

    # --- called by the planner ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It joins the group, reclaims the leases of an earlier process, and balances."""
        self._thread.start()

    def stop(self) -> None:
        """Commit the last progress, release all leases and leave the group; waits a few seconds at most. After SIGKILL
        the leases expire instead."""
        with self._lock:
            self._step(protocol.StopRequested())
            self._give_up_at = min(self._give_up_at, monotonic() + _SHUTDOWN_TIMEOUT)
        if self._thread.is_alive():
            self._thread.join(_SHUTDOWN_TIMEOUT)

    def readable(self) -> Mapping[str, OwnedLease]:
        """The partitions that a batch may read: owned, with no handover pending, and renewed within the lease duration;
        see `MemberEngine.readable` for store outages.

        Raises the error that ended the keeper: `FencedError`, `DataLossError`, `StoreFormatError`.
        """
        with self._lock:
            self._check()
            return self._engine.readable(monotonic())

    def handle(self, input: Input) -> list[Output]:
        """Pass `input` to the engine. Raises the error that ended the keeper."""
        with self._lock:
            self._check()
            return self._step(input)

    @contextmanager
    def engine(self) -> Iterator[MemberEngine]:
        """Exclusive access to the engine. Raises the error that ended the keeper."""
        with self._changing():
            self._check()
            yield self._engine

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` holds, checked after each change of the engine; False after `timeout` seconds. Raises
        the error that ended the keeper."""
        with self._lock:
            return self._wait_for(condition, timeout)

    def lags(self) -> dict[str, Lag]:
        """The sink's lag in each owned partition, if known. Raises the error that ended the keeper."""
        with self._lock:
            self._check()
            query, leases = self._engine.query, self._engine.leases
            positions = {p: lease.checkpoint for p, lease in self._engine.owned.items()} | {
                p: progress.position
                for p, progress in {**query.resets, **query.progress}.items()
                if self._owned(p, progress.epoch)
            }
        find_lag = self._find_lag or (lambda partition, next: None)
        found = {p: current(find_lag, leases.get(p), p, position.next) for p, position in positions.items()}
        return {partition: lag for partition, lag in found.items() if lag is not None}

    def leave(self) -> None:
        """Claim no more partitions, and release all once the batch in flight has ended."""
        self._step(protocol.LeaveRequested())

    def read_leases(self, timeout: float) -> Mapping[str, Lease] | None:
        """All leases, from a read that starts after this call; None if that takes longer than `timeout` seconds. Raises
        the error that ended the keeper."""
        with self._lock:
            number = self._reads_begun + 1
            self._step(protocol.ReadRequested())
            has_read = self._wait_for(lambda: self._reads_ended >= number, timeout)
            return self._engine.leases if has_read else None

    @property
    def snapshot(self) -> Snapshot | None:
        """The group as of the last read, with the leases as of the last commit; None before the first read."""
        return self._engine.snapshot

    @property
    def batch_began(self) -> float | None:
        """Start of the batch in flight (monotonic seconds); None if there is none."""
        query = self._engine.query
        return query.batch_began if query.in_flight else None

    @property
    def is_store_unavailable(self) -> bool:
        """Whether the last read or write of the store failed."""
        return self._engine.failures > 0

    @property
    def store_error(self) -> StoreUnavailableError | None:
        """The error of the last read or write of the store, if it failed."""
        return self._store_error if self.is_store_unavailable else None

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do: nothing owned, no batch in flight, nothing to commit."""
        with self._lock:
            return self._engine.idle

    def wait_balanced(self, timeout: float, *, settled: bool = False, full_share: bool = True) -> bool:
        """Wait until a balancing cycle has ended or, if `settled`, run cycles without the usual interval until one
        finds nothing to claim. Without `full_share`, one owned partition is enough. False after `timeout` seconds.

        Raises the error that ended the keeper.
        """
        engine = self._engine
        with self._lock:
            before = engine.idle_cycles if settled else 0

            def balanced() -> bool:
                if not full_share and engine.owned:
                    return True
                return (engine.idle_cycles if settled else engine.cycles) > before

            return self._settle(balanced, timeout) if settled else self._wait_for(balanced, timeout)

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open_store() as store:
                try:
                    self._keep(store)
                finally:
                    give_up_at = monotonic() + _SHUTDOWN_TIMEOUT
                    self._recording.finish(_SHUTDOWN_TIMEOUT)
                    self._tidying.finish(max(0.0, give_up_at - monotonic()))
        except EhBalanceError as error:
            self._fail(error)
        except BaseException as error:  # also a panic in a Rust library: otherwise this thread would end unnoticed
            _LOG.exception("the lease keeper has failed")
            self._fail(EhBalanceError("EHB_PLANNER_FAILED", reason=repr(error)))

    def _keep(self, store: LeaseStore) -> None:
        while not self._run_cycle(store) and monotonic() <= self._give_up_at:
            self._wait()

    def _wait(self) -> None:
        """Wait until the next cycle is due."""
        with self._lock:
            while (remaining := self._engine.due() - monotonic()) > 0:
                self._lock.wait(remaining)

    def _run_cycle(self, store: LeaseStore) -> bool:
        """Run a cycle if it is due. Returns whether it was the last one."""
        self._recording.check()
        self._tidying.check()
        failures = self._engine.failures
        answer: protocol.Input | None = protocol.Tick()
        while answer is not None:
            with self._changing():
                outputs = self._step(answer)
                if isinstance(answer, protocol.GroupRead):
                    self._reads_ended = self._reads_begun
            answer = None
            for output in outputs:
                answer = self._carry_out(output, store)
        if failures and not self._engine.failures:
            _LOG.warning("the lease table is reachable again: tries=%d", failures)
        return protocol.Left() in outputs

    def _carry_out(self, output: Output, store: LeaseStore) -> protocol.Input | None:
        """Carry out an output of the engine. Returns the answer, if there is one."""
        match output:
            case protocol.ReadGroup():
                return self._read(store)
            case protocol.ResolvePositions(partitions, latest_ms):
                return self._resolve_positions(partitions, latest_ms)
            case protocol.CommitChanges(base, changes):
                return self._write(store, base, changes)
            case protocol.DecisionMade(decision, view):
                self._decisions, level, line = self._decisions.note(self._me, view, decision)
                _LOG.log(level, "%s", line)
                if view is not None:
                    # A query that waits for the group to settle may end before others start, so it warns at once.
                    self._shortage, warning = self._shortage.note(view, at_once=self._engine.rebalancing)
                    if warning is not None:
                        _LOG.warning("%s", warning)
            case protocol.CommitEnded(outcome, tidies):
                self._record_and_tidy(store, outcome, tidies=tidies)
            case protocol.Fail(error):
                raise error
        return None

    def _read(self, store: LeaseStore) -> protocol.Input:
        with self._lock:
            self._reads_begun += 1
        try:
            return protocol.GroupRead(store.read(), self._hub.partition_ids(), self._hub.created_ms())
        except StoreUnavailableError as error:
            return self._failed(error, writing=False)

    def _resolve_positions(self, partitions: Sequence[str], latest_ms: int) -> protocol.Input:
        try:
            return protocol.PositionsResolved(self._hub.starting_positions(partitions, latest_ms))
        except HubUnavailableError as error:
            _LOG.warning("claiming no partitions until the hub is reachable: %s", error)
            return protocol.PositionsResolved(None)

    def _write(self, store: LeaseStore, base: Snapshot, changes: Sequence[Transition]) -> protocol.Input:
        began = monotonic()
        try:
            if self._find_lag is not None:
                changes = with_lags(changes, base.leases, self._find_lag)
            return protocol.Committed(commit(store, base, changes), monotonic() - began)
        except ConflictError:
            self.counts = replace(self.counts, lost=self.counts.lost + ATTEMPTS)
            _LOG.info("the lease table is contended; retrying later")
            return protocol.RacesLost()
        except StoreUnavailableError as error:
            return self._failed(error, writing=True)

    def _failed(self, error: StoreUnavailableError, *, writing: bool) -> protocol.Input:
        self._store_error = error
        level = logging.INFO if self._engine.failures else logging.WARNING
        _LOG.log(
            level,
            "reading owned partitions, but claiming and releasing none until the lease table is reachable: %s",
            error,
        )
        return protocol.StoreFailed(writing)

    def _record_and_tidy(self, store: LeaseStore, outcome: Outcome, *, tidies: bool) -> None:
        """Record history and, on the leader, run maintenance; leases do not depend on either."""
        changes = ownership_changes(outcome)
        self.counts = self.counts.committed(outcome, changes)
        if changes:
            self._recording.do(partial(store.record, changes))
            if not store.capabilities.epochs:
                self._clear(store, changes)
        if tidies and not self._tidying.busy:
            self._tidying.do(store.tidy)

    def _clear(self, store: LeaseStore, changes: Sequence[OwnershipChange]) -> None:
        """Disconnect the former owners of claimed partitions: without epochs they may keep reading until another reader
        connects, and this query connects only if there is a backlog."""
        claimed = [str(x.partition) for x in changes if x.owner == self._me and x.owner_before not in (None, self._me)]
        if claimed:
            self._recording.do(
                partial(self._hub.disconnect_readers, dict.fromkeys(claimed, store.capabilities.owner_level(0)))
            )

    # --- shared by the threads ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """With the lock held, wait until `condition` holds; False after `timeout` seconds. Raises the error that ended
        the keeper."""
        fulfilled = self._lock.wait_for(lambda: self._error is not None or condition(), timeout)
        self._check()
        return fulfilled

    def _settle(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Like `_wait_for`, but run cycles without an interval as long as there are partitions to claim."""
        self._step(protocol.RebalancingBegan())
        try:
            return self._wait_for(condition, timeout)
        finally:
            self._step(protocol.RebalancingEnded())

    def _owned(self, partition: str, epoch: int) -> OwnedLease | None:
        """The lease of `partition`, if this member still owns it in that `epoch`."""
        lease = self._engine.owned.get(partition)
        return lease if lease is not None and lease.epoch == epoch else None

    def _step(self, input: Input) -> list[Output]:
        with self._changing():
            return self._steps.take(input, Clocks(monotonic(), time.time_ns() // 1_000_000))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; on exit notify waiters, and the planner if owned partitions changed."""
        with self._lock:
            before = self._engine.plannable()
            yield
            if self._engine.plannable() != before:
                self.changed.set()
            self._lock.notify_all()

    def _fail(self, error: EhBalanceError) -> None:
        with self._lock:
            self._error = error
            self.changed.set()
            self._lock.notify_all()
