"""Many members on one storage account. The members run without Spark: each is a process with the real lease keeper and
the real Delta store, in an Azurite behind a proxy that delays and counts requests. Each member finishes a batch of all
its partitions once a second. After the group has settled, no lease may change its owner, and no member may be silent
for long.

| what | how it is measured |
|---|---|
| changes of owner | increases of epochs after the group has settled; nobody joins or leaves, so none is necessary |
| silence | the longest time for which a member did not renew a lease, divided by the lease duration in force |
| requests | all requests of the members, counted by the proxy |
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.results import RunOptions, log, print_table
from chaos.soak import run_processes
from chaos.storage.azurite import azurite, make_container, storage_options
from chaos.storage.faults import RequestKind
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.errors import ConflictError
from spark_ehbalance.group.defaults import LEASE_DURATION
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import DEFAULT_STRATEGY, REACTIVE, STRATEGIES
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.progress_policy import OffsetProgress

#: The longest silence allowed, as a fraction of the lease duration in force. Renewals are due after a third of it.
MAX_SILENCE = 1 / 2

#: Seconds between the ends of two batches of a member.
_BATCH = 1.0

#: Seconds within which the group must settle, and seconds without a change after which it counts as settled.
_START_TIMEOUT, _SETTLED_FOR = 300.0, 15.0

#: Seconds by which the proxy delays each request.
_LATENCY = 0.02

_SILENCE_LABEL = "longest silence of a member, of the lease duration"

_GROUP = Group("contention", "hub", "group")
_LOCATION = "az://contention/leases"


@dataclass
class MemberMeasurements:
    """A member's measurements. `silence` is its longest silence, as a fraction of the lease duration in force."""

    commits: int = 0
    conflicts: int = 0
    silence: float = 0.0
    errors: list[str] = field(default_factory=list)


def lease_duration(snapshot: Snapshot) -> float:
    return LEASE_DURATION if snapshot.lease_duration_ms is None else snapshot.lease_duration_ms / 1000


class _Hub:
    """A hub that has partition ids, but no events."""

    def __init__(self, partitions: int) -> None:
        self._ids = tuple(str(partition) for partition in range(partitions))

    def partition_ids(self) -> tuple[str, ...]:
        return self._ids

    def starting_positions(self, partitions: Sequence[str], latest_ms: int = 0) -> dict[str, Position]:
        return dict.fromkeys(partitions, Position(-1))

    def created_ms(self) -> None:
        return None

    def disconnect_readers(self, owner_levels: Mapping[str, int], /) -> None:
        """Do nothing: there are no readers."""


class _MeasuredStore(DeltaStore):
    """The store of the member `owner`. Measures the member's commits while `measuring` is set."""

    def __init__(self, options: dict[str, str], owner: str, measuring: Any) -> None:
        super().__init__(_LOCATION, options)
        self.measurements = MemberMeasurements()
        self._owner, self._measuring = owner, measuring
        self._lock = threading.Lock()
        self._last_written: Snapshot | None = None
        self._renewed: dict[str, float] = {}

    def finish(self) -> MemberMeasurements:
        """The measurements, including the current silence."""
        with self._lock:
            if self._last_written is not None:
                self._record_silence(self._last_written, time.monotonic())
            return self.measurements

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        try:
            written = super().write(base, new)
        except ConflictError:
            self.measurements.conflicts += self._measuring.is_set()
            raise
        with self._lock:
            self._measure(base, written)
        return written

    def _measure(self, base: Snapshot, written: Snapshot) -> None:
        now, measuring = time.monotonic(), self._measuring.is_set()
        self.measurements.commits += measuring
        if measuring:
            self._record_silence(base, now)
        renewed = {}
        for lease in written.owned_by(self._owner):
            before = base.leases.get(lease.partition)
            same = before is not None and before.counter == lease.counter
            renewed[lease.partition] = self._renewed.get(lease.partition, now) if same else now
        self._last_written, self._renewed = written, renewed

    def _record_silence(self, snapshot: Snapshot, now: float) -> None:
        longest = now - min(self._renewed.values(), default=now)
        self.measurements.silence = max(self.measurements.silence, longest / lease_duration(snapshot))


def _member(
    number: int,
    options: dict[str, str],
    partitions: int,
    measuring: Any,
    ending: Any,
    results: Any,
) -> None:
    logging.basicConfig(level=logging.ERROR)
    owner = f"member-{number:03d}"
    store = _MeasuredStore(options, owner, measuring)
    settings = Settings(
        strategy=STRATEGIES[DEFAULT_STRATEGY],
        lease_duration=LEASE_DURATION,
        reactive=DEFAULT_STRATEGY in REACTIVE,
    )
    engine = MemberEngine(Author(owner, uuid.uuid4().hex), settings, random.Random(number))
    keeper = Keeper(QueryEngine(engine, OffsetProgress(StreamOffset(owner))), lambda: store, _Hub(partitions))
    keeper.start()
    positions: dict[str, int] = defaultdict(int)
    while not ending.wait(_BATCH):
        try:
            _batch(keeper, positions)
        except Exception as error:
            store.measurements.errors.append(repr(error))
    results.put(store.finish())


def _batch(keeper: Keeper, positions: dict[str, int]) -> None:
    """Begin a batch of all partitions of a member, and finish it immediately."""
    owned = keeper.readable()
    epochs = {partition: lease.epoch for partition, lease in owned.items()}
    finished = {}
    with keeper.engine() as engine:
        for partition in engine.begin_batch(epochs, time.monotonic()):
            position = max(positions[partition], owned[partition].checkpoint.sequence_number) + 100
            positions[partition] = position
            finished[partition] = Progress(epochs[partition], Position(position))
        engine.finish_batch(finished)


@dataclass
class ContentionResult:
    """The results. Times are in seconds. `lease_duration` is the duration in force at the end."""

    settled_after: float
    seconds: float
    changes: int
    lease_duration: float
    requests: Counter[RequestKind]
    measurements: list[MemberMeasurements]

    @property
    def silence(self) -> float:
        """The longest silence of any member, as a fraction of the lease duration in force."""
        return max(measured.silence for measured in self.measurements)

    @property
    def errors(self) -> list[str]:
        return [error for measured in self.measurements for error in measured.errors]

    def passed(self, most_silence: float) -> bool:
        """Whether no partition moved, and every member committed, had no errors, and was not silent for longer than
        `most_silence`."""
        quiet = [measured for measured in self.measurements if not measured.commits]
        return self.changes == 0 and self.silence <= most_silence and not self.errors and not quiet

    def rate(self, count: int) -> float:
        return count / self.seconds

    def numbers(self) -> dict[str, Any]:
        """The reported numbers by name. Times are in seconds."""
        return {
            "settled after": round(self.settled_after),
            "lease duration in force": self.lease_duration,
            "changes of owner": self.changes,
            _SILENCE_LABEL: round(self.silence, 2),
            "commits/s": round(self.rate(sum(measured.commits for measured in self.measurements)), 2),
            "lost races/s": round(self.rate(sum(measured.conflicts for measured in self.measurements)), 2),
            "requests/s": round(self.rate(self.requests.total()), 1),
            "errors of members": len(self.errors),
        }


def contend(members: int, partitions: int, seconds: float) -> ContentionResult:
    """Let members contend for a table for `seconds` after the group has settled.

    Raises `TimeoutError` if the group does not settle, and `OSError` if there is no Azurite.
    """
    context = multiprocessing.get_context("spawn")
    measuring, ending, results = context.Event(), context.Event(), context.Queue()
    with azurite() as storage, StorageProxy(storage, _LATENCY) as proxy:
        make_container(storage, "contention")
        store = DeltaStore(_LOCATION, storage_options(storage))  # not counted and not delayed
        store.create(_GROUP)
        arguments = (storage_options(proxy.address), partitions, measuring, ending, results)
        processes = [context.Process(target=_member, args=(n, *arguments), daemon=True) for n in range(members)]
        began = time.monotonic()
        with run_processes(processes), contextlib.ExitStack() as stack:
            stack.callback(ending.set)
            _wait_until_settled(store, members, partitions)
            settled = time.monotonic()
            before = _epochs(store.read())
            log(f"settled after {settled - began:.0f} s; measuring for {seconds:.0f} s")
            measuring.set()
            with proxy.count_requests() as requests:
                while (left := settled + seconds - time.monotonic()) > 0:
                    time.sleep(min(30.0, left))
                    newest = store.read()
                    changed = _changes(before, _epochs(newest))
                    passed = time.monotonic() - settled
                    log(f"  {passed:.0f} s, version {newest.version:,}, {changed} changes of owner")
            measuring.clear()
            ending.set()
            seen = [results.get(timeout=60) for _ in processes]
            duration = lease_duration(newest)
            return ContentionResult(settled - began, passed, changed, duration, requests, seen)


def _wait_until_settled(store: DeltaStore, members: int, partitions: int) -> None:
    deadline, since, last, logged_at = time.monotonic() + _START_TIMEOUT, time.monotonic(), None, 0.0
    while True:
        snapshot, now = store.read(), time.monotonic()
        layout = {lease.partition: (lease.owner, lease.epoch, lease.handover) for lease in snapshot.leases.values()}
        complete = len(snapshot.members) == members and len(layout) == partitions
        balanced = complete and all(owner and not handover for owner, _, handover in layout.values())
        if layout != last or not balanced:
            since, last = now, layout
        if balanced and now - since > _SETTLED_FOR:
            return
        if now > deadline:
            owned = sum(owner is not None for owner, _, _ in layout.values())
            raise TimeoutError(
                f"not settled after {_START_TIMEOUT:g} s: {len(snapshot.members)} members, {owned} partitions owned"
            )
        if now - logged_at > 10:
            logged_at, owned = now, sum(owner is not None for owner, _, _ in layout.values())
            log(f"  version {snapshot.version:,}: {len(snapshot.members)} members, {owned} partitions owned")
        time.sleep(0.5)


def _epochs(snapshot: Snapshot) -> dict[str, int]:
    return {partition: lease.epoch for partition, lease in snapshot.leases.items()}


def _changes(before: dict[str, int], after: dict[str, int]) -> int:
    return sum(after[partition] - epoch for partition, epoch in before.items())


def run(run_options: RunOptions) -> bool:
    """Run 20 members and 128 partitions for at most five minutes. The short form runs 10 members and 40 partitions for
    half a minute, and fails only if a lease expires, because other processes can delay renewals."""
    members, partitions, most_silence = (10, 40, 1.0) if run_options.short else (20, 128, MAX_SILENCE)
    result = contend(members, partitions, 30.0 if run_options.short else 60 * min(run_options.minutes, 5.0))
    bars = {"changes of owner": "0", "errors of members": "0", _SILENCE_LABEL: f"{most_silence:g}"}
    rows = [(what, f"{value:,}", bars.get(what)) for what, value in result.numbers().items()]
    title = f"{members} members, {partitions} partitions, {1000 * _LATENCY:g} ms a request, {result.seconds:.0f} s"
    print_table(("what", "value", "bar"), rows, title)
    for line in sorted(set(result.errors))[:10]:
        log(line)
    return result.passed(most_silence)
