"""The lease store: on a local disk, measured by `chaos.soak`, and on a storage account that takes 20 ms for a request.
Beside it delta-rs overwrites a table with the same rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from bench.common import Bar, Log, Row
from chaos.soak import MOST_SLOWDOWN, PARTITIONS, WRITERS, CountingStore, Writer, fill, soak
from chaos.storage.azurite import azurite, make_container, missing, storage_options
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.stores.delta.table_format import to_table

SUBJECT = "leases"

#: Seconds that the storage account takes for a request besides its work.
_LATENCY = 0.02

#: Commits in a second, where upkeep is counted as well: four are the most that a group makes on a storage account.
_PACE = 4

_OVERWRITE = "delta-rs's overwrite of the same rows"


def measure(folder: Path, log: Log, *, commits: int, runs: int) -> Iterator[Row]:
    """Measure `commits` commits on a local disk, at most 1,000 on a storage account, and `runs` times some beside
    delta-rs."""
    yield from _local(folder, log, commits, runs)
    if problem := missing():
        log(f"leases: nothing is measured on a storage account. {problem}")
    else:
        log(f"leases: a storage account that takes {1000 * _LATENCY:g} ms for a request")
        yield from _remote(min(commits, 100), max(100, min(commits, 1000)), log)


def _local(folder: Path, log: Log, commits: int, runs: int) -> Iterator[Row]:
    log(f"leases: beside delta-rs, {runs} runs")
    beside = [_beside_delta_rs(str(folder / f"leases-{run}"), {}, min(commits, 200)) for run in range(runs)]
    ours, theirs, kept_open = zip(*beside, strict=True)
    compared = {_OVERWRITE: theirs, "the same, table kept open": kept_open}
    yield Row(SUBJECT, f"commit, {PARTITIONS} partitions", "ms", ours, compared=compared)
    faster = tuple(their / our for our, their, _ in beside)
    yield Row(SUBJECT, "faster than delta-rs's overwrite", "times", faster, Bar("least", 10.0))
    log(f"leases: {commits:,} commits by one writer, and by {WRITERS}")
    one, several = soak(folder, 1, commits), soak(folder, WRITERS, commits)
    yield Row(SUBJECT, f"{WRITERS} writers together", "commits/s", (several.rate,), Bar("least", 500.0))
    yield Row(SUBJECT, "renewals lost", "renewals", (float(one.lost + several.lost),), Bar("most", 0.0))
    yield Row(SUBJECT, f"after {commits:,} commits, by a new table", "times", (one.ratio,), Bar("most", MOST_SLOWDOWN))


def _remote(times: int, paced: int, log: Log) -> Iterator[Row]:
    location = "az://bench/leases"
    with azurite() as storage, StorageProxy(storage, _LATENCY) as proxy:
        make_container(storage, "bench")
        options = storage_options(proxy.address)
        with CountingStore(location, options) as store, CountingStore(location, storage_options(storage)) as other:
            fill(other, 1)
            mine, theirs = Writer(0, store), Writer(0, other)
            mine.commit()  # also opens the table
            commits = _measured(proxy, mine.commit, times)
            idle = _measured(proxy, store.read, times)
            news = _measured(proxy, store.read, times, before=theirs.commit)
        beside = _beside_delta_rs("az://bench", options, max(3, times // 10))
        log(f"leases: {paced:,} commits, {_PACE} a second, with all of the leader's upkeep")
        with CountingStore(location, options) as store:
            writer = Writer(0, store)
            writer.commit()
            with proxy.counted() as counts:  # a removal of many files is one
                _paced(writer, paced)
    compared = {_OVERWRITE: beside[1:2], "the same, table kept open": beside[2:]}
    most = 1000 * (3 * _LATENCY + 0.02)
    place = f"{1000 * _LATENCY:g} ms a request"
    yield Row(SUBJECT, f"{place}: look and commit", "ms", commits[0], Bar("most", most), compared)
    for what, (ms, requests), bar in (
        ("look and commit", commits, 3.0),
        ("look that finds nothing", idle, 1.0),
        ("look that finds a commit", news, 3.0),
    ):
        yield Row(SUBJECT, f"{place}: {what}", "requests", requests, Bar("most", bar), {"ms": ms})
    what = f"{place}: look and commit, {paced:,} times, with upkeep"
    compared = {kind.value: (count / paced,) for kind, count in counts.items()}
    yield Row(SUBJECT, what, "requests", (counts.total() / paced,), Bar("most", 4.0), compared)


def _paced(writer: Writer, commits: int) -> None:
    """Commit so often; the writer tidies up by the lease keeper's rule."""
    began = time.monotonic()
    for number in range(commits):
        time.sleep(max(0.0, began + number / _PACE - time.monotonic()))
        writer.commit()


def _measured(
    proxy: StorageProxy, act: Callable[[], object], times: int, before: Callable[[], object] = lambda: None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The ms and the requests of each time that something is done."""
    took, requests = [], []
    for _ in range(times):
        before()
        with proxy.counted() as counts:
            began = time.monotonic()
            act()
            took.append(1000 * (time.monotonic() - began))
        requests.append(float(counts.total()))
    return tuple(took), tuple(requests)


def _beside_delta_rs(folder: str, options: Mapping[str, str], times: int) -> tuple[float, float, float]:
    """The median ms of a commit, of delta-rs's overwrite of a table with the same rows, and of an overwrite by a handle
    that is kept open, in turn so that all have the same share of the machine."""
    took: tuple[list[float], ...] = ([], [], [])
    with CountingStore(f"{folder}/ours", options) as store:
        fill(store, 1)
        writer, rows = Writer(0, store), to_table(store.read())
        for name in ("theirs", "open"):
            write_deltalake(f"{folder}/{name}", rows, storage_options=dict(options))
        kept_open = DeltaTable(f"{folder}/open", storage_options=dict(options))
        for _ in range(times):
            writer.commit()
            took[0].append(1000 * writer.wrote.times[-1][1])
            for table, into in ((f"{folder}/theirs", took[1]), (kept_open, took[2])):
                began = time.monotonic()
                write_deltalake(table, rows, mode="overwrite", storage_options=dict(options))
                into.append(1000 * (time.monotonic() - began))
    ours, theirs, open_ = map(statistics.median, took)
    return ours, theirs, open_
