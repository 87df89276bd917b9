"""delta-rs and Spark read what the Delta store says, also while commits go on, and it understands what they write."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ehbalance.group.changes import Checkpoint, Drain, Heartbeat, Renew, RequestHandover
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import SCHEMA, from_table
from tests.lease_table.delta_tables import age_all
from tests.lease_table.store_conformance import ANN, BOB, GROUP, committed
from tests.waiting import wait_until

_T = TypeVar("_T")

#: What a version holds; unlike a snapshot it can be pickled.
State = tuple[dict[str, Lease], dict[str, Member]]

#: Commits before others read, and from one clean-up to the next.
COMMITS, CLEAN_UP = 1_000, 250


def state(snapshot: Snapshot) -> State:
    return dict(snapshot.leases), dict(snapshot.members)


def commit_often(uri: str, begun: Path, stop: Path) -> dict[int, State]:
    """Make `COMMITS` commits, with clean-ups in between that remove all that is not needed; then the file `begun`, and
    commits until there is the file `stop`. Returns what the store says that each version holds."""
    versions: dict[int, State] = {}
    with DeltaStore(uri) as store:

        def commit() -> None:
            at_ms = len(versions)
            renewal = Renew(by=ANN, at_ms=at_ms, partition="0", epoch=1)
            known = committed(store, Heartbeat(by=ANN, at_ms=at_ms), renewal)
            versions[known.version] = state(known)

        for number in range(COMMITS):
            commit()
            if number % CLEAN_UP == 0:
                age_all(uri)
                commit()
                store.tidy()
        begun.touch()
        while not stop.exists():
            time.sleep(0.005)  # a large group makes no more commits
            commit()
            if len(versions) % CLEAN_UP == 0:
                store.tidy()
    return versions


def attempted(read: Callable[[], _T]) -> _T:
    """The result of `read`, at the first attempt that finds all files: a listing of a local directory may miss one that
    is made meanwhile, and find the next, which readers notice and refuse."""
    for _ in range(9):
        with contextlib.suppress(Exception):
            return read()
    return read()


def rows_by_delta_rs(uri: str) -> tuple[pa.Table, int]:
    table = DeltaTable(uri)
    return table.to_pyarrow_table(), table.version()


def rows_by_spark(spark: Any, uri: str, **options: Any) -> pa.Table:
    return spark.read.format("delta").options(**options).load(uri).toArrow()


def snapshot(rows: pa.Table, version: int) -> Snapshot:
    return from_table(rows.select(SCHEMA.names).cast(SCHEMA), GROUP, version)


def version_by_spark(spark: Any, uri: str, version: int) -> Snapshot:
    return snapshot(rows_by_spark(spark, uri, versionAsOf=version), version)


@pytest.mark.heavy
@pytest.mark.spark
def test_others_read_what_the_store_says_while_commits_go_on(
    uri: str, tmp_path: Path, mine: DeltaStore, spark: Any
) -> None:
    begun, stop, read = tmp_path / "begun", tmp_path / "stop", list[Snapshot]()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        writer = pool.submit(commit_often, uri, begun, stop)
        try:
            wait_until(lambda: begun.exists() or writer.done(), "many commits are made")
            read.append(attempted(lambda: version_by_spark(spark, uri, mine.read().version)))
            while len({each.version for each in read}) <= 10:
                assert not writer.done()
                read += [snapshot(*attempted(partial(rows_by_delta_rs, uri))), mine.read()]
        finally:
            stop.touch()
        versions = writer.result(60)
    newest = max(versions)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{uri}` LIMIT 5").collect()
    for each in read:
        assert state(each) == versions[each.version]
    for each in (mine.read(), snapshot(rows_by_spark(spark, uri), newest)):
        assert state(each) == versions[newest]
    assert not Path(uri, "_delta_log", f"{COMMITS // 2:020}.json").exists(), "nothing was cleaned up"
    for entries in (DeltaTable(uri).history(5), [entry.asDict() for entry in history]):
        assert [entry["operation"] for entry in entries] == ["WRITE"] * 5


# --- what others write -----------------------------------------------------------------------------------------------

STATEMENTS = [
    "UPDATE {table} SET host = 'here' WHERE kind = 'member'",
    "OPTIMIZE {table}",
    "VACUUM {table}",
]


@pytest.mark.spark
def test_the_store_understands_what_spark_writes_and_spark_what_it_writes(
    uri: str, mine: DeltaStore, theirs: DeltaStore, spark: Any
) -> None:
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # for VACUUM: 10,000 tasks else
    ask = RequestHandover(by=BOB, at_ms=3, partition="0", epoch=1, to="bob", timeout_ms=30_000)
    progress = Checkpoint(by=ANN, at_ms=2, partition="0", epoch=1, position=Position(2**40, "4294967296"))
    committed(mine, ask, progress, Drain(by=BOB, at_ms=4, member="bob"))
    assert spark.read.format("delta").load(uri).columns == SCHEMA.names
    for statement in STATEMENTS:
        spark.sql(statement.format(table=f"delta.`{uri}`"))
        found = mine.read()
        with DeltaStore(uri) as fresh:
            assert fresh.read() == found, statement
        assert found == snapshot(rows_by_spark(spark, uri), found.version), statement
        written = committed(mine, Heartbeat(by=ANN, at_ms=found.version))
        assert theirs.read() == written, statement
    theirs.tidy()
    assert mine.read() == theirs.read()
    assert snapshot(rows_by_spark(spark, uri), mine.read().version) == mine.read()
