"""The Delta store: the common suite with processes as contenders, and what only a Delta table can do wrong."""

from __future__ import annotations

import base64
import functools
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.errors import ConflictError, StoreError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Author, Lease, MemberLoad, Pin
from spark_ehbalance.leases.orders import PinTo
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    Checkpoint,
    Drain,
    Heartbeat,
    Join,
    Renew,
    RequestHandover,
    Transition,
)
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.delta.store import CHECKPOINT_INTERVAL, DeltaStore
from spark_ehbalance.stores.delta.table_format import FORMAT, SCHEMA, description
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position
from tests.stores.store_conformance import ANN, BOB, GROUP, Recipe, StoreConformance, claim, line_up

OPERATOR = Author("operator", "")

HOUR_AGO = time.time() - 3700

WriteOutcome = Callable[[Callable[..., None]], Callable[..., None]]


class TestDeltaStore(StoreConformance):
    def place(self, tmp_path: Path) -> Recipe:
        return functools.partial(DeltaStore, str(tmp_path / "leases"))

    def contenders(self, count: int) -> Executor:
        spawn = multiprocessing.get_context("spawn")  # delta-rs has threads, which a fork would lose
        return ProcessPoolExecutor(count, spawn, initializer=line_up, initargs=(spawn.Barrier(count),))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of a lease table with two members and two partitions; partition 0 is ann's."""
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as store:
        store.create(GROUP)
        joins = [Join(by=ANN, at_ms=1), Join(by=BOB, at_ms=1)]
        add = AddPartitions(by=ANN, at_ms=1, partitions=("0", "1"), checkpoint=Position(-1))
        committed(store, store.read(), *joins, add, claim(ANN, "0"))
    return uri


def assert_one_line_with(location: str, error: pytest.ExceptionInfo[StoreError]) -> None:
    message = str(error.value)
    assert location in message
    assert "\n" not in message


def committed(store: DeltaStore, base: Snapshot, *transitions: Transition) -> Snapshot:
    """The snapshot after a commit of `transitions`, which must all be accepted."""
    outcome = commit(store, base, transitions)
    assert (outcome.accepted, outcome.refused) == (transitions, ())
    return outcome.after


# --- the outcome of a commit is not known ------------------------------------------------------------------------


TRANSACTION = DeltaTable.create_write_transaction


class Writes:
    """Stands in for delta-rs's transaction: does the real commit if `lands`, then `meanwhile`, and then breaks."""

    def __init__(self, *, lands: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.lands, self.meanwhile, self.calls = lands, meanwhile, 0

    def __call__(self, table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        if self.calls > 1:  # whatever is written meanwhile and later goes through
            TRANSACTION(table, *args, **kwargs)
            return
        if self.lands:
            TRANSACTION(table, *args, **kwargs)
        self.meanwhile()
        raise OSError("connection reset by peer\nCaused by: something on a second line")


def break_once(monkeypatch: pytest.MonkeyPatch, writes: Writes) -> None:
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *args, **kwargs: writes(*args, **kwargs))


def renewal() -> Renew:
    return Renew(by=ANN, at_ms=5, partition="0", epoch=1)


def bob_beats(uri: str) -> None:
    """A commit by somebody else."""
    with DeltaStore(uri) as theirs:
        commit(theirs, theirs.read(), [Heartbeat(by=BOB, at_ms=9)])


def test_a_commit_that_broke_after_it_landed_is_found(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(monkeypatch, Writes(lands=True))
    with DeltaStore(uri) as mine, DeltaStore(uri) as theirs:
        base = mine.read()
        after = committed(mine, base, renewal())
        assert after.version == base.version + 1
        assert after.leases["0"].renewal == base.leases["0"].renewal + 1, "renewed once, not twice"
        assert theirs.read() == after

        again = commit(mine, after, [renewal()]).after
        assert again.version == after.version + 1
        assert theirs.read() == again


def test_a_commit_that_landed_is_found_under_those_of_others(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def others() -> None:
        for _ in range(3):
            bob_beats(uri)

    break_once(monkeypatch, Writes(lands=True, meanwhile=others))
    with DeltaStore(uri) as mine, DeltaStore(uri) as theirs:
        base = mine.read()
        after = commit(mine, base, [renewal()]).after
        assert after.version == base.version + 1

        end = committed(mine, after, renewal())
        assert end.version == base.version + 5
        assert end.leases["0"].renewal == base.leases["0"].renewal + 2
        assert end.members["bob"].renewal == base.members["bob"].renewal + 3, "nothing of the others' is overwritten"
        assert theirs.read() == end


def test_a_commit_that_never_landed_is_an_unavailable_store(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(monkeypatch, Writes(lands=False))
    with DeltaStore(uri) as mine, DeltaStore(uri) as theirs:
        base = mine.read()
        with pytest.raises(StoreUnavailableError, match="connection reset") as error:
            commit(mine, base, [renewal()])
        assert_one_line_with(uri, error)
        assert theirs.read() == base

        after = commit(mine, base, [renewal()]).after
        assert after.version == base.version + 1


def test_a_commit_that_never_landed_while_another_did_is_a_lost_race(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(monkeypatch, Writes(lands=False, meanwhile=lambda: bob_beats(uri)))
    with DeltaStore(uri) as mine, DeltaStore(uri) as theirs:
        base = mine.read()
        new = mine.read()
        with pytest.raises(ConflictError) as error:
            mine.write(base, new)
        assert_one_line_with(uri, error)
        assert theirs.read().version == base.version + 1


def test_a_commit_whose_outcome_cannot_be_read_is_an_unavailable_store(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_once(monkeypatch, Writes(lands=True, meanwhile=lambda: shutil.rmtree(uri)))
    with DeltaStore(uri) as mine:
        base = mine.read()
        with pytest.raises(StoreUnavailableError) as error:
            mine.write(base, base)
        assert_one_line_with(uri, error)


def test_a_commit_whose_history_cannot_be_read_is_an_unavailable_store(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
        raise OSError("still no connection")

    break_once(monkeypatch, Writes(lands=True))
    monkeypatch.setattr(DeltaTable, "history", broken)
    with DeltaStore(uri) as mine:
        base = mine.read()
        with pytest.raises(StoreUnavailableError) as error:
            mine.write(base, base)
        assert_one_line_with(uri, error)


# --- a stale handle ----------------------------------------------------------------------------------------------


def test_a_write_is_tied_to_the_version_that_was_read_and_leaves_no_file_behind(uri: str) -> None:
    with DeltaStore(uri) as stale, DeltaStore(uri) as theirs:
        base = stale.read()
        newest = commit(theirs, theirs.read(), [claim(BOB, "1")]).after
        files = set(Path(uri).glob("*.parquet"))
        with pytest.raises(ConflictError):
            stale.write(base, replace(base, members={}))
        assert theirs.read() == newest
    assert set(Path(uri).glob("*.parquet")) == files


def test_a_lost_race_leaves_one_file_at_the_most_and_none_in_the_end(uri: str) -> None:
    files = set(Path(uri).glob("*.parquet"))
    with DeltaStore(uri) as unlucky:
        for _ in range(5):
            base = unlucky.read()
            bob_beats(uri)
            with pytest.raises(ConflictError):
                unlucky.write(base, base)
        assert len(set(Path(uri).glob("*.parquet")) - files) == 5 + 1
    assert len(set(Path(uri).glob("*.parquet")) - files) == 5


@pytest.mark.parametrize("own", [True, False])
def test_a_stale_write_is_refused_after_the_log_has_been_tidied(tmp_path: Path, own: bool) -> None:
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as late, DeltaStore(uri) as others:
        late.create(GROUP)
        base = late.read()
        if own:  # what it has written itself is not read again
            base = late.write(base, replace(base, leases={"0": Lease("0")}))
        newest = others.read()
        for number in range(2 * CHECKPOINT_INTERVAL + 1):
            newest = others.write(newest, replace(newest, leases={"0": Lease("0", renewal=number)}))
        for file in (tmp_path / "leases" / "_delta_log").iterdir():
            os.utime(file, (HOUR_AGO, HOUR_AGO))
        others.tidy()
        assert not (tmp_path / "leases" / "_delta_log" / f"{base.version + 1:020}.json").exists()
        with pytest.raises(ConflictError):
            late.write(base, replace(base, leases={"0": Lease("0")}))
        assert late.read() == others.read() == newest


def test_a_look_at_an_unchanged_table_lists_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DeltaStore(uri) as mine, DeltaStore(uri) as theirs:
        known = mine.read()
        assert mine.read() is known
        monkeypatch.setattr(DeltaTable, "update_incremental", lambda *_: pytest.fail("the log was listed"))
        assert mine.read() is known
        monkeypatch.undo()
        newest = commit(theirs, theirs.read(), [claim(BOB, "1")]).after
        assert mine.read() == newest != known


def test_a_handle_that_never_read_does_not_write(uri: str) -> None:
    with DeltaStore(uri) as reader, DeltaStore(uri) as fresh:
        base = reader.read()
        with pytest.raises(ConflictError):
            fresh.write(base, base)
        assert reader.read() == base


def test_a_closed_handle_does_not_write_before_it_has_read_again(uri: str) -> None:
    with DeltaStore(uri) as store:
        base = store.read()
        store.close()
        with pytest.raises(ConflictError):
            store.write(base, base)
        assert store.read() == base


def test_a_table_that_was_deleted_is_not_there_any_more(uri: str) -> None:
    with DeltaStore(uri) as store:
        store.read()
        shutil.rmtree(uri)
        with pytest.raises(StoreUnavailableError) as error:
            store.read()
        assert_one_line_with(uri, error)


_READ = """
import os, sys
from pathlib import Path
from spark_ehbalance.stores.delta import DeltaStore

def unnamed():  # delta-rs gives its threads names, Arrow does not
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return names.count(Path(f"/proc/self/task/{os.getpid()}/comm").read_text())

before = unnamed()
with DeltaStore(sys.argv[1]) as store:
    assert getattr(store, sys.argv[2])()
print(unnamed() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them")
@pytest.mark.parametrize("what", ["read", "history"])
def test_nothing_starts_threads_of_arrow_which_end_a_process_by_an_abort(uri: str, what: str) -> None:
    with DeltaStore(uri) as store:
        for number in range(3):
            store.record([OwnershipChange(number, "0", "Claim", None, "ann", number, None, "ann")])
    run = subprocess.run([sys.executable, "-c", _READ, uri, what], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("0\n", "")


# --- not a lease table of ours -----------------------------------------------------------------------------------


def create_delta_table(uri: str, note: str | None) -> None:
    DeltaTable.create(uri, schema=pa.schema([("x", pa.int64())]) if note is None else SCHEMA, description=note)


def newer_format() -> str:
    return json.dumps({**json.loads(description(GROUP)), "ehbalance": FORMAT + 1})


@pytest.mark.parametrize("action", ["read", "create"])
@pytest.mark.parametrize(
    ("note", "hint"),
    [
        (newer_format(), f"format {FORMAT + 1}"),
        (None, "not a lease table"),
        ("somebody's table of leases", "not a lease table"),
        ('{"owner": "somebody"}', "not a lease table"),
        ('["ehbalance"]', "not a lease table"),
    ],
)
def test_another_table_is_refused_and_left_alone(tmp_path: Path, action: str, note: str | None, hint: str) -> None:
    uri = str(tmp_path / "theirs")
    create_delta_table(uri, note)
    with DeltaStore(uri) as store:
        with pytest.raises(StoreFormatError, match=hint) as error:
            _ = store.read() if action == "read" else store.create(GROUP)
        assert_one_line_with(uri, error)
    assert DeltaTable(uri).version() == 0


@pytest.mark.parametrize("note", ['{"ehbalance": "one"}', '{"ehbalance": 1}'])
def test_a_garbled_note_is_a_format_error(tmp_path: Path, note: str) -> None:
    uri = str(tmp_path / "theirs")
    create_delta_table(uri, note)
    with DeltaStore(uri) as store:
        with pytest.raises(StoreFormatError) as error:
            store.read()
        assert_one_line_with(uri, error)


def test_a_lease_table_of_another_group_names_both(uri: str) -> None:
    with DeltaStore(uri) as store:
        with pytest.raises(StoreFormatError, match="other/hub") as error:
            store.create(Group("other", "hub", "$default"))
        assert_one_line_with(uri, error)


# --- not reachable -----------------------------------------------------------------------------------------------

DEAD_S3 = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_REGION": "nowhere",
    "max_retries": "0",
    "retry_timeout": "1s",
}


@pytest.mark.parametrize("action", ["read", "create"])
@pytest.mark.parametrize(
    ("location", "options"),
    [("{tmp}/a-file/leases", {}), ("s3://bucket/leases", DEAD_S3), ("nonsense://host/leases", {})],
    ids=["below a file", "dead endpoint", "unknown scheme"],
)
def test_an_unreachable_location_is_an_unavailable_store(
    tmp_path: Path, location: str, options: dict[str, str], action: str
) -> None:
    (tmp_path / "a-file").write_text("not a folder")
    uri = location.format(tmp=tmp_path)
    with DeltaStore(uri, options) as store:
        with pytest.raises(StoreUnavailableError) as error:
            _ = store.read() if action == "read" else store.create(GROUP)
        assert_one_line_with(uri, error)
        assert "a-secret" not in str(error.value)
        assert "a-secret" not in repr(store)


# --- other readers -----------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_the_same_rows(uri: str, spark: Any) -> None:
    with DeltaStore(uri) as store:
        ask = RequestHandover(by=BOB, at_ms=3, partition="0", epoch=1, to="bob", timeout_ms=30_000)
        progress = Checkpoint(by=ANN, at_ms=2, partition="0", epoch=1, position=Position(2**40, "4294967296"))
        leaving = Drain(by=BOB, at_ms=4, member="bob")
        snapshot = committed(store, store.read(), ask, progress, leaving)
        for _ in range(60):  # beyond a checkpoint of the log
            snapshot = commit(store, snapshot, [Heartbeat(by=ANN, at_ms=5)]).after
        with DeltaStore(uri) as reader:
            assert reader.read() == snapshot

    table = spark.read.format("delta").load(uri)
    columns = ["kind", "id", "owner", "epoch", "renewal", "sequence_number", "offset", "next_owner", "state", "joined"]
    rows = {(row.kind, row.id): row for row in table.select(*columns).collect()}

    assert table.columns == SCHEMA.names
    ids = {("partition", "0"), ("partition", "1"), ("member", "ann"), ("member", "bob"), ("table", "ann-1")}
    assert set(rows) == ids
    for partition, lease in snapshot.leases.items():
        row = rows["partition", partition]
        assert (row.owner, row.epoch, row.renewal) == (lease.owner, lease.epoch, lease.renewal)
        assert lease.checkpoint is not None
        assert (row.sequence_number, row.offset) == (lease.checkpoint.sequence_number, lease.checkpoint.offset)
        assert row.next_owner == (lease.handover and lease.handover.to)
    for id, member in snapshot.members.items():
        row = rows["member", id]
        assert (row.joined, row.renewal, row.state) == (member.joined, member.renewal, member.state.value)
    millis = table.selectExpr("id", "unix_millis(renewed_at) AS at").where("kind = 'member'").collect()
    assert {row.id: row["at"] for row in millis} == {"ann": 5, "bob": 1}


def test_a_storage_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/account"
        options = {
            "azure_storage_account_name": "account",
            "azure_storage_account_key": base64.b64encode(b"secret").decode(),
            "azure_storage_endpoint": endpoint,
            "azure_allow_http": "true",
        }
        with DeltaStore("az://container/leases", options, patience=0.5) as store:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="could not be read"):
                store.read()
            # delta-rs by itself would try for three minutes.
            assert time.monotonic() - began < 20


# --- tables made by earlier versions ----------------------------------------------------------------------------

#: What every table has had from the beginning.
FIRST_COLUMNS = SCHEMA.names[: SCHEMA.names.index("pinned_to")]


@pytest.fixture
def old_uri(uri: str) -> str:
    """A lease table with the columns that the first version had."""
    rows = DeltaTable(uri).to_pyarrow_table().select(FIRST_COLUMNS)
    write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite")
    assert columns(uri) == FIRST_COLUMNS
    return uri


def columns(uri: str) -> list[str]:
    return [field.name for field in DeltaTable(uri).schema().fields]


def test_an_old_table_is_read_and_written_and_maintaining_gives_it_the_new_columns(old_uri: str) -> None:
    pin = PinTo(by=OPERATOR, at_ms=1, partition="0", to="ann", timeout_ms=1, why="so")
    load = MemberLoad(1.0, 2.0, 3.0, 0.5)

    def writes(store: DeltaStore, number: int) -> None:
        base = store.read()
        lease = base.leases["0"]
        position = Checkpoint(by=ANN, at_ms=1, partition="0", epoch=lease.epoch, position=Position(number))
        after = committed(store, base, Heartbeat(by=ANN, at_ms=1, load=load), position)
        assert after.version == base.version + 1
        with DeltaStore(old_uri) as other:
            assert other.read() == after

    with DeltaStore(old_uri) as at_work:
        assert at_work.read().leases["0"].owner == "ann"
        assert at_work.read().leases["0"].pin is None
        writes(at_work, 1)
        committed(at_work, at_work.read(), pin)
        with DeltaStore(old_uri) as operator:
            before = operator.read()
            assert before.leases["0"].pin == Pin("ann", OPERATOR.id, "so")
            assert before.members["ann"].load == load
            operator.maintain()
            assert columns(old_uri) == SCHEMA.names
            after = operator.read()
            assert (after.leases, after.members) == (before.leases, before.members)
            version = after.version
            operator.maintain()
            assert operator.read().version == version, "no columns are added twice"
        writes(at_work, 2)
        rows = DeltaTable(old_uri).to_pyarrow_table().to_pylist()
        assert {row["id"]: row["pinned_to"] for row in rows if row["kind"] == "partition"} == {"0": "ann", "1": None}


def test_maintaining_removes_old_data_files_that_no_log_knows_and_nothing_else(uri: str) -> None:
    folder, one = Path(uri), "0dab2fc0-bfdc-4e57-aa87-6417aec08108"
    data = [f"{one}.parquet", *(f"part-00000-{one}{end}.parquet" for end in ("-c000.snappy", ".c000.snappy", "-c000"))]
    others = ["notes.txt", "mine.parquet", f"{one}.csv", f"copy of {one}.parquet", "part-00000.parquet", f".{data[0]}"]
    below = [
        "checkpoint/offsets/12",
        "checkpoint/metadata",
        "src/job.py",
        ".git/config",
        *(f"x/{each}" for each in data),
    ]
    new = "1dab2fc0-bfdc-4e57-aa87-6417aec08108.parquet"
    for name in (*data, *others, *below, new):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    with DeltaStore(f"{uri}/nested") as nested, DeltaStore(uri) as store:
        nested.create(GROUP)
        for each in (nested, store):
            each.write(each.read(), each.read())
            each.write(each.read(), each.read())
        for file in folder.rglob("*"):
            if file.name != new:
                os.utime(file, (HOUR_AGO, HOUR_AGO))
        nested_files = sorted((folder / "nested").rglob("*"))
        before = store.read()
        store.maintain()
        with DeltaStore(uri) as again:
            assert again.read().leases == before.leases
        live = {uri.rsplit("/", 1)[1] for uri in DeltaTable(uri).file_uris()}
    assert {file.name for file in folder.iterdir() if file.is_file()} == {*others, new, *live}
    assert all((folder / name).exists() for name in below)
    assert sorted((folder / "nested").rglob("*")) == nested_files


@pytest.mark.parametrize("name", ["timeout", "allow_http", "endpoint", "account_key"])
def test_a_secret_that_the_storage_does_not_understand_is_not_repeated(name: str) -> None:
    key = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode() + "%"
    store = DeltaStore("az://container/leases", {"azure_storage_account_name": "account", name: key})
    for ask in (store.exists, store.read, store.history):
        with pytest.raises(StoreUnavailableError) as caught:
            ask()
        assert key.rstrip("=%") not in "".join(traceback.format_exception(caught.value))
