"""Many members on a slow store: `python -m chaos.contention [--members 50] [--partitions 200] [--latency 0.15]`.

Members without Spark, each with the real lease keeper on the real Delta store, whose commits are slowed down as on a
storage account. Each member finishes a batch of all its partitions once a second. After the group has settled no lease
may change its owner, and every renewal must be in time, however contended the table is.

| what | how it is measured |
|---|---|
| lost | changes of epoch after the group has settled |
| renewal gap | time between two commits that renew a lease; at most a third of the lease duration + `SLACK` |
| checkpoint delay | time from the end of a batch until a commit contains its position or a later one |
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.fleet import dump
from spark_ehbalance.errors import ConflictError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.member.query import Progress
from spark_ehbalance.member.settings import Settings
from spark_ehbalance.member.turn import Participant
from spark_ehbalance.stores.base import LeaseStore
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.strategies import DEFAULT_STRATEGY, REACTIVE, STRATEGIES
from spark_ehbalance.values.defaults import BALANCE_INTERVAL
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

LEASE_DURATION = 60.0

#: Seconds that lost races may delay a renewal beyond a third of the lease duration. Half of the lease duration is then
#: left.
SLACK = LEASE_DURATION / 6

#: Seconds between the ends of two batches of a member.
_BATCH = 1.0

#: Seconds within which the group must settle, and for which it must not have changed then.
_START_TIMEOUT, _SETTLED_FOR = 300.0, 15.0

_PROCESSES = 4
_GROUP = Group("contention", "hub", "group")


@dataclass
class Measured:
    """The measurements of one process's members. Delays and gaps are in seconds."""

    commits: int = 0
    conflicts: int = 0
    gave_up: int = 0
    delays: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Hub:
    """A hub that only has partition ids."""

    def __init__(self, partitions: int) -> None:
        self._ids = tuple(str(partition) for partition in range(partitions))

    def partition_ids(self) -> tuple[str, ...]:
        return self._ids

    def starting_positions(self, partitions: Sequence[str]) -> dict[str, Position]:
        return dict.fromkeys(partitions, Position(-1))

    def earliest_position(self, partition: str) -> Position:
        return Position(-1)


class _SlowStore(DeltaStore):
    """The Delta store with slow commits, which measures those of `owner`."""

    def __init__(self, uri: str, latency: float, owner: str, seen: Measured, measuring: Any) -> None:
        super().__init__(uri)
        self._latency, self._owner, self._seen, self._measuring = latency, owner, seen, measuring
        self._lock = threading.Lock()
        self._ends: list[tuple[float, str, int, int]] = []  # time, partition, epoch, sequence number
        self._renewed: dict[str, tuple[int, float]] = {}

    def batch_ended(self, partition: str, epoch: int, position: int) -> None:
        """The member has finished a partition up to `position`."""
        with self._lock:
            self._ends.append((time.monotonic(), partition, epoch, position))

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        time.sleep(self._latency)
        try:
            written = super().write(base, new)
        except ConflictError:
            self._seen.conflicts += self._measuring.is_set()
            raise
        self._measure(base, written)
        return written

    def _measure(self, base: Snapshot, written: Snapshot) -> None:
        now, measuring = time.monotonic(), self._measuring.is_set()
        self._seen.commits += measuring
        for lease in written.owned_by(self._owner):
            before = base.leases.get(lease.partition)
            if before is None or before.counter != lease.counter:
                epoch, at = self._renewed.get(lease.partition, (-1, 0.0))
                if measuring and epoch == lease.epoch:
                    self._seen.gaps.append(now - at)
                self._renewed[lease.partition] = (lease.epoch, now)
        with self._lock:
            remaining = []
            for end in self._ends:
                at, partition, epoch, position = end
                lease = written.leases[partition]
                if lease.epoch != epoch or (lease.checkpoint and lease.checkpoint.sequence_number >= position):
                    if measuring and lease.epoch == epoch:
                        self._seen.delays.append(now - at)
                else:
                    remaining.append(end)
            self._ends = remaining


def _members(
    numbers: range, table: str, partitions: int, latency: float, measuring: Any, ending: Any, results: Any
) -> None:
    """Run the members of one process until `ending` is set."""
    logging.basicConfig(level=logging.ERROR)
    seen, keepers = Measured(), list[tuple[Keeper, _SlowStore]]()
    for number in numbers:
        owner = f"member-{number:03d}"
        store = _SlowStore(table, latency, owner, seen, measuring)
        settings = Settings(
            strategy=STRATEGIES[DEFAULT_STRATEGY],
            lease_duration=LEASE_DURATION,
            balance_interval=BALANCE_INTERVAL,
            reactive=DEFAULT_STRATEGY in REACTIVE,
        )
        participant = Participant(Author(owner, uuid.uuid4().hex), settings, random.Random(number))
        keeper = Keeper(participant, partial(_the_store, store), _Hub(partitions))
        keepers.append((keeper, store))
        keeper.start()
    positions: dict[str, int] = defaultdict(int)
    while not ending.wait(_BATCH):
        for keeper, store in keepers:
            try:
                _batch(keeper, store, positions)
            except Exception as error:
                seen.errors.append(repr(error))
    results.put(seen)


def _the_store(store: LeaseStore) -> LeaseStore:
    return store


def _batch(keeper: Keeper, store: _SlowStore, positions: dict[str, int]) -> None:
    """Run a batch of all partitions of a member, which ends at once."""
    holdings = keeper.holdings()
    epochs = {partition: holding.epoch for partition, holding in holdings.items()}
    finished = {}
    for partition in keeper.reserve(epochs):
        position = max(positions[partition], holdings[partition].checkpoint.sequence_number) + 100
        positions[partition] = position
        finished[partition] = Progress(epochs[partition], Position(position))
        store.batch_ended(partition, epochs[partition], position)
    keeper.finish(finished)


@dataclass
class Result:
    """The results."""

    members: int
    partitions: int
    latency: float
    settled_after: float
    seconds: float
    lost: int
    seen: Measured

    @property
    def late(self) -> int:
        """The number of late renewals."""
        return sum(gap > LEASE_DURATION / 3 + SLACK for gap in self.seen.gaps)

    @property
    def passed(self) -> bool:
        return not (self.lost or self.late or self.seen.errors) and bool(self.seen.gaps)


def contend(folder: Path, members: int, partitions: int, latency: float, seconds: float, progress: Any) -> Result:
    """Let members contend for a table in `folder`. Raises `TimeoutError` if the group does not settle."""
    table = str(folder / "leases")
    store = DeltaStore(table)
    store.create(_GROUP)
    context = multiprocessing.get_context("spawn")
    measuring, ending, results = context.Event(), context.Event(), context.Queue()
    processes = []
    for number in range(_PROCESSES):
        numbers = range(number, members, _PROCESSES)
        arguments = (numbers, table, partitions, latency, measuring, ending, results)
        processes.append(context.Process(target=_members, args=arguments, daemon=True))
    began = time.monotonic()
    try:
        for process in processes:
            process.start()
        _wait_until_settled(store, members, partitions, progress)
        settled = time.monotonic()
        before = _epochs(store)
        measuring.set()
        progress(f"settled after {settled - began:.0f} s; measuring for {seconds:.0f} s")
        while (left := settled + seconds - time.monotonic()) > 0:
            time.sleep(min(30.0, left))
            changed = _changes(before, _epochs(store))
            progress(f"  {time.monotonic() - settled:.0f} s, version {store.read().version:,}, {changed} leases lost")
        lost = _changes(before, _epochs(store))
        measuring.clear()
        ending.set()
        total = Measured()
        for _ in processes:
            seen = results.get(timeout=60)
            total.commits += seen.commits
            total.conflicts += seen.conflicts
            total.delays += seen.delays
            total.gaps += seen.gaps
            total.errors += seen.errors
        return Result(members, partitions, latency, settled - began, seconds, lost, total)
    finally:
        ending.set()
        for process in processes:
            with contextlib.suppress(ValueError, AssertionError):
                process.join(2)
                process.kill()


def _wait_until_settled(store: DeltaStore, members: int, partitions: int, progress: Any) -> None:
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
            progress(f"  version {snapshot.version:,}: {len(snapshot.members)} members, {owned} partitions owned")
        time.sleep(0.5)


def _epochs(store: DeltaStore) -> dict[str, int]:
    return {partition: lease.epoch for partition, lease in store.read().leases.items()}


def _changes(before: dict[str, int], after: dict[str, int]) -> int:
    return sum(after[partition] - epoch for partition, epoch in before.items())


def report(result: Result) -> Table:
    """The table for people."""
    seen = result.seen
    title = f"{result.members} members, {result.partitions} partitions, commits {result.latency * 1000:.0f} ms slower"
    table = Table(title=f"{title}, {result.seconds:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("bar", justify="right")
    due = LEASE_DURATION / 3 + SLACK
    rows = [
        ("settled after", f"{result.settled_after:.0f} s", ""),
        ("leases lost", f"{result.lost}", "0"),
        (f"renewals later than {due:g} s", f"{result.late} of {len(seen.gaps):,}", "0"),
        ("time between two renewals, p99", f"{quantile(seen.gaps, 0.99):.1f} s", ""),
        ("longest time between two renewals", f"{max(seen.gaps, default=0):.1f} s", f"{due:g} s"),
        ("commits/s", f"{seen.commits / result.seconds:.2f}", ""),
        ("races lost", f"{seen.conflicts} ({seen.conflicts / max(1, seen.commits):.2f} for each commit)", ""),
        ("checkpoint delay, median", f"{quantile(seen.delays, 0.5):.1f} s", ""),
        ("checkpoint delay, p99", f"{quantile(seen.delays, 0.99):.1f} s", ""),
        ("errors of members", f"{len(seen.errors)}", "0"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def quantile(values: list[float], part: float) -> float:
    """The `part` quantile of `values`; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.contention", description="Many members on a slow store.")
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.15, help="seconds added to each commit")
    parser.add_argument("--minutes", type=float, default=10.0, help="to measure, after the group has settled")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on standard output")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    folder = Path(tempfile.mkdtemp(prefix="ehbalance-contention-"))
    try:
        result = contend(
            folder, options.members, options.partitions, options.latency, options.minutes * 60, console.print
        )
    except TimeoutError as error:
        console.print(f"FAILED: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(report(result))
    for line in sorted(set(result.seen.errors))[:10]:
        console.print(line)
    if options.json:
        values = {name: value for name, value in asdict(result).items() if name != "seen"}
        p50, p99 = quantile(result.seen.delays, 0.5), quantile(result.seen.delays, 0.99)
        print(dump(values | {"late": result.late, "p50": p50, "p99": p99, "passed": result.passed}))
    console.print("OK" if result.passed else "FAILED")
    return 0 if result.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
