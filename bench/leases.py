"""The lease store: commits of one writer and of four, measured by `chaos.soak`, compared with delta-rs alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from bench.common import Bar, Log, Row
from chaos.soak import MOST_SLOWDOWN, PARTITIONS, WRITERS, Run, soak

SUBJECT = "leases"


def measure(folder: Path, log: Log, *, commits: int, runs: int) -> Iterator[Row]:
    """Measure `runs` runs of `commits` commits, each on a new table."""
    one, several, bare = list[Run](), list[Run](), list[float]()
    for run in range(runs):
        log(f"leases: run {run + 1} of {runs}, {commits:,} commits by one writer, and by {WRITERS}")
        run_folder = folder / f"leases-{run}"
        one.append(soak(run_folder, 1, commits))
        several.append(soak(run_folder, WRITERS, commits))
        bare.append(_bare(run_folder / "bare", min(commits, 200)))
    ours = tuple(run.last_ms for run in one)
    compared = {"write_deltalake alone": tuple(bare)}
    yield Row(SUBJECT, f"commit, {PARTITIONS} partitions", "ms", ours, Bar("most", 12.0), compared)
    yield Row(
        SUBJECT, f"{WRITERS} writers together", "commits/s", tuple(run.rate for run in several), Bar("least", 50.0)
    )
    lost = tuple(float(run.lost) for run in (*one, *several))
    yield Row(SUBJECT, "renewals lost", "renewals", lost, Bar("most", 0.0))
    ratios = tuple(run.ratio for run in one)
    yield Row(SUBJECT, f"after {commits:,} commits, by a new table", "times", ratios, Bar("most", MOST_SLOWDOWN))


def _bare(table: Path, commits: int) -> float:
    """The median ms of an overwrite of a table of the same size, without a read or a conflict check."""
    rows = pa.table({"partition": [f"{number}" for number in range(PARTITIONS)], "owner": ["writer-0"] * PARTITIONS})
    times = []
    for _ in range(commits):
        began = time.monotonic()
        write_deltalake(str(table), rows, mode="overwrite")
        times.append(time.monotonic() - began)
    return 1000 * statistics.median(times)
