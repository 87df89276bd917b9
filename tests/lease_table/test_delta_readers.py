"""delta-rs and Spark read the Delta store's rows, even during commits, and are allowed some writes."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ehbalance.errors import StoreReplacedError
from spark_ehbalance.group.changes import Checkpoint, Drain, Heartbeat, RequestHandover
from spark_ehbalance.group.model import Lease, Member, MemberLoad
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import SCHEMA, from_table, to_table
from tests.lease_table.delta_tables import age_all
from tests.lease_table.store_conformance import ANN, BOB, GROUP, committed
from tests.raising import raises


def snapshot(rows: pa.Table, version: int) -> Snapshot:
    return from_table(rows.select(SCHEMA.names).cast(SCHEMA), GROUP, version)


def rows_by_spark(spark: Any, uri: str) -> pa.Table:
    return spark.read.format("delta").load(uri).toArrow()


def test_lease_details_have_the_stored_names() -> None:
    lease = Lease("0", epoch=4, renewal=2, owned_since_ms=7, defences=1, seek_epoch=4, stall_count=2)
    rows = to_table(replace(Snapshot(GROUP), leases={"0": lease}))
    assert json.loads(rows["details"][0].as_py()) == {
        "renewal": 2,
        "owned_since_ms": 7,
        "defences": 1,
        "sought": 4,
        "stalled": 2,
    }
    assert snapshot(rows, 0).leases == {"0": lease}


def test_load_written_by_an_earlier_process_is_read() -> None:
    member = Member("ann", "1", 1, load=MemberLoad(1.0, 2.0, 3.0))
    rows = to_table(replace(Snapshot(GROUP), members={"ann": member}))
    at = rows["kind"].to_pylist().index("member")
    details = rows["details"].to_pylist()
    details[at] = details[at].replace('"batch_seconds":3.0', '"batch_seconds":3.0,"cpu":0.5')
    assert '"cpu"' in details[at]
    assert snapshot(rows.set_column(7, "details", pa.array(details)), 0).members == {"ann": member}


def test_delta_rs_reads_rows_during_commits_and_clean_ups(uri: str, mine: DeltaStore) -> None:
    versions, read, over = {mine.read().version: mine.read()}, list[Snapshot](), threading.Event()

    def commit_often() -> None:
        with DeltaStore(uri) as store:
            while not over.is_set():
                known = committed(store, Heartbeat(by=ANN, at_ms=len(versions)))
                versions[known.version] = known
                if len(versions) % 50 == 0:
                    age_all(uri)
                    store.tidy()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(commit_often)
        try:
            while len({found.version for found in read}) < 20 or len(versions) < 120:
                assert not writer.done()
                # A listing of a local folder can miss a file created at the same time; delta-rs detects that and fails.
                with contextlib.suppress(Exception):
                    table = DeltaTable(uri)
                    read.append(snapshot(table.to_pyarrow_table(), table.version()))
                read.append(mine.read())
        finally:
            over.set()
        writer.result(60)
    for found in read:
        assert (found.leases, found.members) == (versions[found.version].leases, versions[found.version].members)
    assert [entry["operation"] for entry in DeltaTable(uri).history(5)] == ["WRITE"] * 5


# --- what others write -----------------------------------------------------------------------------------------------

HARMLESS = ["OPTIMIZE {table}", "VACUUM {table}"]

EDITS = ["RESTORE {table} TO VERSION AS OF 2", "UPDATE {table} SET host = 'here'", "OPTIMIZE {table} ZORDER BY (id)"]


@pytest.mark.spark
def test_store_and_spark_read_each_others_commits(uri: str, mine: DeltaStore, theirs: DeltaStore, spark: Any) -> None:
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # or else VACUUM has 10,000 tasks
    request = RequestHandover(by=BOB, at_ms=3, partition="0", epoch=1, to="bob", timeout_ms=30_000)
    progress = Checkpoint(by=ANN, at_ms=2, partition="0", epoch=1, position=Position(2**40, "4294967296"))
    committed(mine, request, progress, Drain(by=BOB, at_ms=4, member="bob"))
    assert spark.read.format("delta").load(uri).columns == SCHEMA.names
    for statement in HARMLESS:
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


@pytest.mark.spark
@pytest.mark.parametrize("statement", EDITS)
def test_rows_changed_by_spark_are_an_error(uri: str, mine: DeltaStore, spark: Any, statement: str) -> None:
    for at_ms in range(3):
        committed(mine, Heartbeat(by=ANN, at_ms=at_ms))
    spark.sql(statement.format(table=f"delta.`{uri}`"))
    with DeltaStore(uri) as fresh:
        for store in (mine, fresh):
            what = re.compile(rf"^version 5 is a foreign commit \({statement.split()[0]}")
            with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", problem=what):
                store.read()
