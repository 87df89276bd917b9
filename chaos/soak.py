"""The lease store alone, as fast as it can: `python -m chaos.soak [--commits 20000]`.

Four writers in processes of their own renew the leases of one group, each those that it owns, once with all four and
once with one. The leader tidies up by the rule of the lease keeper. A commit must stay as fast as it was, the table's
folder must stay small, and no renewal that was accepted may be lost: the counters in the table must be the sums of
what the writers have counted.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.fleet import dump
from spark_ehbalance.errors import ConflictError, StoreUnavailableError
from spark_ehbalance.leases.delta import DeltaStore
from spark_ehbalance.leases.keeper import tidying_due
from spark_ehbalance.leases.model import Author, Group, Position, Snapshot
from spark_ehbalance.leases.store import commit
from spark_ehbalance.leases.transitions import AddPartitions, Claim, Heartbeat, Join, Renew, Transition

PARTITIONS = 64
WRITERS = 4

#: The last thousand commits may take this much longer than the first, by the median.
MOST_SLOWDOWN = 1.3

#: Files in the table's folder: each commit leaves a log file and a data file. The leader tidies up every 300 versions,
#: every other time at least, as a read may fail; log files it leaves for 3 s, and one in 50 is a checkpoint.
_KEPT_FOR, _CHECKPOINTS = 3.0, 1.02
_NOT_TIDIED = 2 * 300

#: The first and the last commits that are compared, and how often the files are counted.
_SLICE = 1000


@dataclass
class Run:
    """What came of one run."""

    writers: int
    commits: int
    seconds: float
    first_ms: float
    last_ms: float
    lost: int
    conflicts: int
    tidied: int
    not_tidied: int
    most_files: int
    files: list[tuple[int, int]] = field(default_factory=list)  # (commits, files)

    @property
    def rate(self) -> float:
        return self.commits / self.seconds

    @property
    def ratio(self) -> float:
        return self.last_ms / self.first_ms

    @property
    def most_allowed(self) -> int:
        """How many files the folder may hold."""
        return round(_CHECKPOINTS * self.rate * _KEPT_FOR) + 2 * _NOT_TIDIED

    @property
    def passed(self) -> bool:
        return self.ratio <= MOST_SLOWDOWN and self.lost == 0 and self.most_files <= self.most_allowed


class _Counting(DeltaStore):
    """Counts the races that it loses."""

    conflicts = 0

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        try:
            return super().write(base, new)
        except ConflictError:
            self.conflicts += 1
            raise


@dataclass
class _Wrote:
    """What a writer has to say at the end: (end, duration) of its commits, and its accepted renewals."""

    times: list[tuple[float, float]]
    renewals: dict[str, int]
    conflicts: int
    tidied: int = 0
    not_tidied: int = 0


def soak(folder: Path, writers: int, commits: int, progress: Any = None) -> Run:
    """One run in a new table in `folder`."""
    table = folder / f"leases-{writers}"
    _fill(table, writers)
    before = _counters(table)
    context = multiprocessing.get_context("spawn")
    done, results = context.Value("i", 0), context.Queue()
    processes = [
        context.Process(target=_write, args=(str(table), number, commits, done, results), daemon=True)
        for number in range(writers)
    ]
    files: list[tuple[int, int]] = []
    most, wrote = 0, list[_Wrote]()
    with _ended(processes):
        while len(wrote) < writers:
            while not results.empty():
                wrote.append(results.get())
            if any(process.exitcode for process in processes):
                raise RuntimeError("a writer has failed")
            count = _files(table)
            most = max(most, count)
            if done.value // _SLICE > len(files):
                files.append((done.value, count))
                if progress is not None:
                    progress(f"  {done.value:,} commits, {count:,} files")
            time.sleep(0.1)
    times = sorted(time for each in wrote for time in each.times)
    slice_ = min(_SLICE, len(times) // 4)
    counted = {partition: number for each in wrote for partition, number in each.renewals.items()}
    after = _counters(table)
    return Run(
        writers=writers,
        commits=len(times),
        seconds=times[-1][0] - min(end - took for end, took in times),
        first_ms=1000 * statistics.median(took for _, took in times[:slice_]),
        last_ms=1000 * statistics.median(took for _, took in times[-slice_:]),
        lost=sum(abs(after[p] - before[p] - counted[p]) for p in after),
        conflicts=sum(each.conflicts for each in wrote),
        tidied=sum(each.tidied for each in wrote),
        not_tidied=sum(each.not_tidied for each in wrote),
        most_files=most,
        files=files,
    )


def _author(number: int) -> Author:
    return Author(f"writer-{number}", "soak")


def _fill(table: Path, writers: int) -> None:
    """Make the group: all writers are members and own as many leases each."""
    now = time.time_ns() // 1_000_000
    said: list[Transition] = [Join(by=_author(number), at_ms=now) for number in range(writers)]
    names = tuple(str(partition) for partition in range(PARTITIONS))
    said.append(AddPartitions(by=_author(0), at_ms=now, partitions=names, checkpoint=Position(-1)))
    said += [
        Claim(by=_author(int(partition) % writers), at_ms=now, partition=partition, epoch=0) for partition in names
    ]
    with DeltaStore(str(table)) as store:
        store.create(Group("soak", "hub", "group"))
        _, rejected = commit(store, store.read(), said)
    assert not rejected


def _write(table: str, number: int, commits: int, done: Any, results: Any) -> None:
    """Commit until all writers together have done so often enough, so that the leader is there to the end."""
    author, wrote = _author(number), _Wrote([], {}, 0)
    tidied = (0, time.monotonic())
    with _Counting(table) as store:
        while _one_more(done, commits):
            began = time.monotonic()
            snapshot, now = store.read(), time.time_ns() // 1_000_000
            mine = [(lease.partition, lease.epoch) for lease in snapshot.owned_by(author.id)]
            renewals = [Renew(by=author, at_ms=now, partition=partition, epoch=epoch) for partition, epoch in mine]
            snapshot, rejected = commit(store, snapshot, [Heartbeat(by=author, at_ms=now), *renewals], attempts=1000)
            ended = time.monotonic()
            wrote.times.append((ended, ended - began))
            refused = {id(each.transition) for each in rejected}
            for renewal in renewals:
                wrote.renewals[renewal.partition] = wrote.renewals.get(renewal.partition, 0) + (
                    id(renewal) not in refused
                )
            if snapshot.leader == author.id and tidying_due(snapshot.version - tidied[0], ended - tidied[1]):
                tidied = (snapshot.version, ended)
                try:  # as the keeper does it: what fails is done the next time
                    store.tidy()
                    wrote.tidied += 1
                except StoreUnavailableError:
                    wrote.not_tidied += 1
        wrote.conflicts = store.conflicts
    results.put(wrote)


def _one_more(done: Any, commits: int) -> bool:
    with done.get_lock():
        done.value += 1
        return bool(done.value <= commits)


@contextlib.contextmanager
def _ended(processes: list[Any]) -> Iterator[None]:
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


def _files(table: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(table))


def report(runs: list[Run]) -> Table:
    """The table for people."""
    table = Table(title=f"lease store, {PARTITIONS} partitions", title_justify="left")
    table.add_column("what")
    for run in runs:
        table.add_column(f"{run.writers} writer{'s'[: run.writers > 1]}", justify="right")
    rows = {
        "commits": [f"{run.commits:,}" for run in runs],
        "commits/s": [f"{run.rate:.0f}" for run in runs],
        "lost": [f"{run.lost}" for run in runs],
        "races lost and run again": [f"{run.conflicts:,}" for run in runs],
        f"median of the first {_SLICE:,}": [f"{run.first_ms:.1f} ms" for run in runs],
        f"median of the last {_SLICE:,}": [f"{run.last_ms:.1f} ms" for run in runs],
        f"ratio (at most {MOST_SLOWDOWN})": [f"{run.ratio:.2f}" for run in runs],
        "tidied up": [f"{run.tidied}" for run in runs],
        "  failed": [f"{run.not_tidied}" for run in runs],
        "most files in the folder": [f"{run.most_files:,}" for run in runs],
        "  allowed": [f"{run.most_allowed:,}" for run in runs],
    }
    for what, cells in rows.items():
        table.add_row(what, *cells)
    table.add_section()
    for place in range(max((len(run.files) for run in runs), default=0)):
        cells = [f"{run.files[place][1]:,}" if place < len(run.files) else "" for run in runs]
        table.add_row(f"files after {(place + 1) * _SLICE:,} commits", *cells)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description="The lease store alone, as fast as it can.")
    parser.add_argument("--commits", type=int, default=20_000, help="of each run (default: 20,000)")
    parser.add_argument("--writers", type=int, nargs="+", default=[WRITERS, 1], help="of each run (default: 4 1)")
    parser.add_argument("--json", action="store_true", help="the outcome for programs, on standard output")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    folder = Path(tempfile.mkdtemp(prefix="ehbalance-soak-"))
    runs = []
    try:
        for writers in options.writers:
            console.print(f"{writers} writers, {options.commits:,} commits")
            runs.append(soak(folder, writers, options.commits, console.print))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(report(runs))
    if options.json:
        print(dump([asdict(run) | {"rate": run.rate, "ratio": run.ratio, "passed": run.passed} for run in runs]))
    passed = all(run.passed for run in runs)
    console.print("OK" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
