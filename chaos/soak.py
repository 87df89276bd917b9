"""Runs only the lease store, at full speed.

Four writers, each in its own process, renew the leases that they own in one group; a second run has one writer. The
leader tidies the table as often as the lease keeper would. Commits must not become slower, and no accepted renewal may
be lost: the counters in the table must equal the sums of the writers' counts. The store keeps the files of earlier
versions for minutes. So, at the end, the test makes all files an hour old, and after one more commit the leader must
remove them.

The machine's speed changes during these minutes. So the last thousand commits alternate with the first thousand commits
to a new table, and are compared with these.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.results import RunOptions, log, print_table
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.changes import AddPartitions, Claim, Heartbeat, Join, Renew, Transition
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.pacing import tidying_due
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore

PARTITIONS = 64
WRITERS = 4

#: In a new table, the last thousand commits may take this many times as long as the first thousand (medians).
MAX_SLOWDOWN = 1.3

#: Maximum number of files that may be left: the data, log files and checkpoint of the last versions.
MAX_FILES_LEFT = 20

#: Number of commits that are compared.
_SLICE = 1000


@dataclass
class Run:
    writers: int
    commits: int
    rate: float  # commits/s
    last_ms: float
    new_ms: float
    lost: int
    files: int
    left: int

    @property
    def ratio(self) -> float:
        return self.last_ms / self.new_ms

    @property
    def passed(self) -> bool:
        return self.ratio <= MAX_SLOWDOWN and self.lost == 0 and self.left <= MAX_FILES_LEFT


@dataclass
class WriterResult:
    """A writer's results for one table: the (end, duration) of its commits, and its accepted renewals per partition."""

    times: list[tuple[float, float]] = field(default_factory=list)
    renewals: Counter[str] = field(default_factory=Counter)


def soak(folder: Path, writers: int, commits: int) -> Run:
    old, new = (folder / f"{which}-{writers}" for which in ("old", "new"))
    for table in (old, new):
        with DeltaStore(str(table)) as store:
            fill(store, writers)
    before = {table: _counters(table) for table in (old, new)}
    again = min(_SLICE, commits // 2)
    context = multiprocessing.get_context("spawn")
    done, last, results = context.Value("i", 0), context.Value("i", 0), context.Queue()
    shared = (old, new, commits - again, again, context.Barrier(writers), done, last, results)
    processes = [context.Process(target=_write, args=(number, *shared), daemon=True) for number in range(writers)]
    wrote = list[tuple[WriterResult, WriterResult]]()
    with run_processes(processes):
        while len(wrote) < writers:
            while not results.empty():
                wrote.append(results.get())
            if any(process.exitcode for process in processes):
                raise RuntimeError("a writer has failed")
            time.sleep(0.1)
    lost = _lost(old, before[old], [first for first, _ in wrote]) + _lost(
        new, before[new], [second for _, second in wrote]
    )
    files = _files(old)
    _tidy_an_hour_later(old)
    times = sorted(time for written, _ in wrote for time in written.times)
    fresh = sorted(time for _, written in wrote for time in written.times)
    return Run(
        writers=writers,
        commits=len(times),
        rate=len(times[:-again]) / (times[-again - 1][0] - min(end - took for end, took in times)),
        last_ms=1000 * statistics.median(took for _, took in times[-again:]),
        new_ms=1000 * statistics.median(took for _, took in fresh),
        lost=lost,
        files=files,
        left=_files(old),
    )


def _lost(table: Path, before: dict[str, int], wrote: list[WriterResult]) -> int:
    """The number of accepted renewals that are not in the table."""
    counted = sum((written.renewals for written in wrote), Counter[str]())
    return sum(abs(after - before[partition] - counted[partition]) for partition, after in _counters(table).items())


def _author(number: int) -> Author:
    return Author(f"writer-{number}", "soak")


def fill(store: DeltaStore, writers: int) -> None:
    """Create a group in which all writers are members, and own equal numbers of leases."""
    now = time.time_ns() // 1_000_000
    transitions: list[Transition] = [Join(by=_author(number), at_ms=now) for number in range(writers)]
    names = tuple(str(partition) for partition in range(PARTITIONS))
    transitions.append(AddPartitions(by=_author(0), at_ms=now, partitions=names, checkpoint=Position(-1)))
    transitions += [
        Claim(by=_author(int(partition) % writers), at_ms=now, partition=partition, epoch=0) for partition in names
    ]
    store.create(Group("soak", "hub", "group"))
    refused = commit(store, store.read(), transitions).rejected
    assert not refused


def _write(
    number: int, old: Path, new: Path, commits: int, again: int, start: Any, done: Any, last: Any, results: Any
) -> None:
    """Wait for the other writers, and commit until all writers together have made `commits`, so that the leader stays
    until the end. Then commit to both tables in turn, until all writers together have done so `again` times."""
    with DeltaStore(str(old)) as store, DeltaStore(str(new)) as fresh:
        writer, other = Writer(number, store), Writer(number, fresh)
        store.read(), fresh.read()  # this opens the tables
        start.wait()
        while _count_commit(done, commits):
            writer.commit()
        while _count_commit(last, again):
            writer.commit()
            other.commit()
    results.put((writer.result, other.result))


class Writer:
    def __init__(self, number: int, store: DeltaStore) -> None:
        self._author, self._store = _author(number), store
        self._tidied = (0, time.monotonic())
        self.result = WriterResult()

    def commit(self) -> None:
        """Read the table, and commit all renewals. Only the commit is timed."""
        store, author, wrote = self._store, self._author, self.result
        snapshot, now = store.read(), time.time_ns() // 1_000_000
        mine = [(lease.partition, lease.epoch) for lease in snapshot.owned_by(author.id)]
        renewals = [Renew(by=author, at_ms=now, partition=partition, epoch=epoch) for partition, epoch in mine]
        began = time.monotonic()
        outcome = commit(store, snapshot, [Heartbeat(by=author, at_ms=now), *renewals], attempts=1000)
        ended = time.monotonic()
        wrote.times.append((ended, ended - began))
        snapshot = outcome.after
        wrote.renewals.update(transition.partition for transition in outcome.accepted if isinstance(transition, Renew))
        if snapshot.leader == author.id and tidying_due(snapshot.version - self._tidied[0], ended - self._tidied[1]):
            self._tidied = (snapshot.version, ended)
            with contextlib.suppress(StoreUnavailableError):  # the keeper, too, would try again the next time
                store.tidy()


def _count_commit(done: Any, commits: int) -> bool:
    with done.get_lock():
        done.value += 1
        return bool(done.value <= commits)


@contextlib.contextmanager
def run_processes(processes: list[Any]) -> Iterator[None]:
    """Start the processes, and end them after the `with` block."""
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def _counters(table: Path) -> dict[str, int]:
    with DeltaStore(str(table)) as store:
        return {partition: lease.renewal for partition, lease in store.read().leases.items()}


def _tidy_an_hour_later(table: Path) -> None:
    for folder, _, names in os.walk(table):
        for name in names:
            os.utime(Path(folder, name), (time.time() - 3600,) * 2)
    author = _author(0)
    with DeltaStore(str(table)) as store:
        commit(store, store.read(), [Heartbeat(by=author, at_ms=time.time_ns() // 1_000_000)])
        store.tidy()


def _files(table: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(table))


def print_runs(runs: list[Run]) -> None:
    rows = {
        "commits": [f"{run.commits:,}" for run in runs],
        "commits/s": [f"{run.rate:,.0f}" for run in runs],
        "lost": [f"{run.lost}" for run in runs],
        f"median of the last {_SLICE:,}": [f"{run.last_ms:.2f} ms" for run in runs],
        f"the first {_SLICE:,} on a new table, meanwhile": [f"{run.new_ms:.2f} ms" for run in runs],
        f"ratio of the last two (at most {MAX_SLOWDOWN})": [f"{run.ratio:.2f}" for run in runs],
        "files": [f"{run.files:,}" for run in runs],
        f"  left an hour later (at most {MAX_FILES_LEFT})": [f"{run.left:,}" for run in runs],
    }
    columns = ("what", *(f"{run.writers} writer{'s'[: run.writers > 1]}" for run in runs))
    print_table(columns, [(what, *cells) for what, cells in rows.items()], f"lease store, {PARTITIONS} partitions")


def run(run_options: RunOptions) -> bool:
    """Run several writers, and then one, with 20,000 commits each, or with 1,000 in the short form."""
    commits = 1_000 if run_options.short else 20_000
    with tempfile.TemporaryDirectory(prefix="ehbalance-soak-", ignore_cleanup_errors=True) as folder:
        runs = []
        for writers in (WRITERS, 1):
            log(f"{writers} writers, {commits:,} commits")
            runs.append(soak(Path(folder), writers, commits))
    print_runs(runs)
    return all(run.passed for run in runs)
