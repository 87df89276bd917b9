"""The lease store. On a local disk, it is compared with delta-rs overwriting the same rows, and measured with the soak
test. On a storage account, its requests are counted, including those for maintenance."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from deltalake import write_deltalake

from bench.common import Bar, Bench, Log, Row
from chaos.soak import MAX_SLOWDOWN, WRITERS, Writer, fill, soak
from chaos.storage.azurite import azurite, make_container, missing_requirement, storage_options
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import to_table

#: Seconds by which the proxy delays each request to the storage account.
_LATENCY = 0.02

#: Commits per second when requests are counted: the most that a group makes on a storage account.
_COMMITS_PER_SECOND = 4

_OVERWRITE, _COMMIT_RATIO = "delta-rs's overwrite", "commit, by delta-rs's overwrite"
_TOGETHER, _RENEWALS_LOST = f"{WRITERS} writers together", "renewals lost"
_SLOWDOWN, _REQUESTS = "after all commits, by a new table", "read and commit on a storage account, with maintenance"


def measure(folder: Path, log: Log, *, commits: int, paced: int, runs: int) -> Iterator[Row]:
    """Measure `runs` comparisons with delta-rs, `commits` commits on a local disk, and `paced` commits on a storage
    account."""
    log(f"compared with delta-rs, {runs} runs")
    ours, theirs = zip(
        *(_compare_with_delta_rs(folder / f"leases-{run}", min(commits, 200)) for run in range(runs)), strict=True
    )
    yield Row("commit, 64 partitions", "ms", ours, {_OVERWRITE: theirs})
    yield Row(_COMMIT_RATIO, "×", [one / other for one, other in zip(ours, theirs, strict=True)])
    log(f"{commits:,} commits by one writer, and by {WRITERS}")
    one, several = soak(folder, 1, commits), soak(folder, WRITERS, commits)
    yield Row(_TOGETHER, "commits/s", [several.rate])
    yield Row(_RENEWALS_LOST, "renewals", [float(one.lost + several.lost)])
    yield Row(_SLOWDOWN, "×", [one.ratio])
    if problem := missing_requirement():
        log(f"nothing is measured on a storage account: {problem}")
        return
    log(f"{paced:,} commits, {_COMMITS_PER_SECOND} a second, on a storage account with {1000 * _LATENCY:g} ms latency")
    with azurite() as storage, StorageProxy(storage, _LATENCY) as proxy:
        make_container(storage, "bench")
        with DeltaStore("az://bench/leases", storage_options(proxy.address)) as store:
            fill(store, 1)
            writer = Writer(0, store)
            writer.commit()
            with proxy.count_requests() as counts:
                began = time.monotonic()
                for number in range(paced):
                    time.sleep(max(0.0, began + number / _COMMITS_PER_SECOND - time.monotonic()))
                    writer.commit()
    by_kind = {kind.value: [count / paced] for kind, count in counts.items()}
    yield Row(_REQUESTS, "requests", [counts.total() / paced], by_kind)


def _compare_with_delta_rs(folder: Path, times: int) -> tuple[float, float]:
    """The median milliseconds of a commit, and of delta-rs overwriting a table with the same rows. They take turns."""
    ours, theirs = list[float](), list[float]()
    with DeltaStore(f"{folder}/ours") as store:
        fill(store, 1)
        writer, rows = Writer(0, store), to_table(store.read())
        write_deltalake(f"{folder}/theirs", rows)
        for _ in range(times):
            writer.commit()
            ours.append(1000 * writer.result.times[-1][1])
            began = time.monotonic()
            write_deltalake(f"{folder}/theirs", rows, mode="overwrite")
            theirs.append(1000 * (time.monotonic() - began))
    return statistics.median(ours), statistics.median(theirs)


BENCH = Bench(
    "leases",
    measure,
    compared_with="delta-rs's overwrite of a table with the same rows",
    short={"commits": 40, "paced": 20, "runs": 1},
    full={"commits": 20_000, "paced": 1_000, "runs": 3},
    bars={
        _COMMIT_RATIO: Bar("most", 0.1),
        _TOGETHER: Bar("least", 500.0),
        _RENEWALS_LOST: Bar("most", 0.0),
        _SLOWDOWN: Bar("most", MAX_SLOWDOWN),
        _REQUESTS: Bar("most", 4.0),
    },
)
