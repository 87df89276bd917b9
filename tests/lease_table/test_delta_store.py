"""The Delta store's compare-and-swap: the conformance suite with processes as contenders, commits with an unknown
outcome, and stale handles."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_ehbalance.errors import ConflictError, StoreError, StoreReplacedError, StoreUnavailableError
from spark_ehbalance.group.changes import Heartbeat, Renew
from spark_ehbalance.group.model import Lease
from spark_ehbalance.lease_table.delta import maintenance
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.contenders import Opening
from tests.lease_table.contenders import processes as contenders
from tests.lease_table.delta_tables import assert_one_line_with, change, commit_by_bob
from tests.lease_table.store_conformance import ANN, BOB, GROUP, LeaseTableConformance, committed
from tests.raising import raises

__all__ = ["contenders"]

RENEWAL = Renew(by=ANN, at_ms=5, partition="0", epoch=1)


class TestDeltaStore(LeaseTableConformance):
    def opening(self, tmp_path: Path) -> Opening:
        return functools.partial(DeltaStore, str(tmp_path / "leases"))


# --- commits with an unknown outcome -----------------------------------------------------------------------------


def break_first_write(
    monkeypatch: pytest.MonkeyPatch, *, lands: bool, then: Callable[[], object] = lambda: None
) -> None:
    """Make the first conditional write fail: it is carried out if it `lands`, then `then` is called, then it raises.
    Later writes succeed."""
    put, calls = obstore.put, [lands]

    def broken(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") != "create" or not calls:
            return put(*args, **kwargs)
        if calls.pop():
            put(*args, **kwargs)
        then()
        raise OSError("connection reset by peer\nCaused by: something on a second line")

    monkeypatch.setattr(obstore, "put", broken)


@pytest.mark.parametrize("others", [0, 3])
def test_landed_commit_with_a_lost_response_is_found(
    uri: str, mine: DeltaStore, theirs: DeltaStore, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    break_first_write(monkeypatch, lands=True, then=lambda: [commit_by_bob(uri) for _ in range(others)])
    base = mine.read()
    after = committed(mine, RENEWAL, base=base)
    assert after.version == base.version + 1
    assert after.leases["0"].renewal == base.leases["0"].renewal + 1, "renewed once, not twice"
    end = committed(mine, RENEWAL, base=after)
    assert end.version == base.version + 2 + others
    assert end.members["bob"].renewal == base.members["bob"].renewal + others, "nothing of the others' is overwritten"
    assert theirs.read() == end


def unreadable_files(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OSError("still no connection")

    monkeypatch.setattr(obstore, "get", broken)


@pytest.mark.parametrize(
    ("lands", "then", "kind"),
    [
        (False, lambda uri, _: None, StoreUnavailableError),
        (False, lambda uri, _: commit_by_bob(uri), ConflictError),
        (True, lambda uri, _: shutil.rmtree(uri), StoreUnavailableError),
        (True, unreadable_files, StoreUnavailableError),
    ],
    ids=["never landed", "another did", "gone", "unreadable"],
)
def test_unconfirmed_commit_is_an_error(
    uri: str,
    mine: DeltaStore,
    monkeypatch: pytest.MonkeyPatch,
    lands: bool,
    then: Callable[[str, pytest.MonkeyPatch], None],
    kind: type[StoreError],
) -> None:
    base = mine.read()
    break_first_write(monkeypatch, lands=lands, then=lambda: then(uri, monkeypatch))
    with pytest.raises(kind) as error:
        mine.write(base, base)
    assert_one_line_with(uri, error)
    if not lands:
        assert mine.read().version == base.version + (kind is ConflictError)
        assert committed(mine, RENEWAL).leases["0"].renewal == base.leases["0"].renewal + 1


# --- stale handles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("cut_off", [True, False])
def test_suspended_member_detects_a_cleaned_up_log(
    uri: str, theirs: DeltaStore, own: bool, reads: bool, cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LOG_SECONDS", 0.0)  # files that are made older do not count as the same ones
    times = [0.0]
    with DeltaStore(uri, clock=lambda: times[-1]) as mine:
        base = mine.read()
        if own:  # its own commit is not read again
            base = mine.write(base, replace(base, leases={"0": Lease("0")}))
        newest = theirs.read()
        known, after = (Path(uri, "_delta_log", f"{base.version + more:020}.json") for more in (0, 1))
        os.link(known, f"{uri}-known")
        for number in range(3):
            newest = theirs.write(newest, replace(newest, leases={"0": Lease("0", renewal=number)}))
        theirs.tidy()
        assert not after.exists()
        if cut_off:  # the clean-up has not removed all files yet
            os.link(f"{uri}-known", known)
        times.append(3700.0)
        if not reads:
            with pytest.raises(StoreUnavailableError, match="suspended"):
                mine.write(base, replace(base, leases={"0": Lease("0")}))
            assert not after.exists()
        assert mine.read() == theirs.read() == newest


@pytest.mark.parametrize("behind", [1, 3, 4, 5, 50])
def test_stale_handle_reads_the_newest_version(mine: DeltaStore, theirs: DeltaStore, behind: int) -> None:
    base = mine.read()
    for _ in range(behind):
        newest = committed(theirs, Heartbeat(by=BOB, at_ms=9))
    assert mine.read() == newest
    assert newest.version == base.version + behind
    assert committed(mine, RENEWAL).version == newest.version + 1


@pytest.mark.parametrize("closed", [True, False])
def test_handle_without_a_read_does_not_write(mine: DeltaStore, theirs: DeltaStore, closed: bool) -> None:
    base = mine.read()
    if closed:
        theirs.read()
        theirs.close()
    with pytest.raises(ConflictError):
        theirs.write(base, base)
    assert mine.read() == theirs.read() == base


# --- threads -----------------------------------------------------------------------------------------------------

_READ = """
import os, sys, time
from pathlib import Path
from spark_ehbalance.lease_table.delta.store import DeltaStore

def unnamed():  # delta-rs gives its threads names, Arrow does not
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return names.count(Path(f"/proc/self/task/{os.getpid()}/comm").read_text())

before = unnamed()
with DeltaStore(sys.argv[1]) as store:
    assert getattr(store, sys.argv[2])()
deadline = time.monotonic() + 10
while unnamed() > before and time.monotonic() < deadline:  # a new thread has no name at first
    time.sleep(0.05)
print(unnamed() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them")
@pytest.mark.parametrize("what", ["read", "history"])
def test_arrow_threads_are_never_started(uri: str, mine: DeltaStore, what: str) -> None:
    for number in range(3):
        mine.record([change(number)])
    run = subprocess.run([sys.executable, "-c", _READ, uri, what], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("0\n", "")


# --- removed, replaced or restored tables -------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [1, 3])
def test_commits_into_a_recreated_table_are_withdrawn(tmp_path: Path, commits: int) -> None:
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as forgotten:
        forgotten.create(GROUP)
        for _ in range(9):
            base = forgotten.write(forgotten.read(), forgotten.read())
        shutil.rmtree(uri)
        with DeltaStore(uri) as current:
            current.create(GROUP)
            for _ in range(commits):  # without a read, because storage accounts are checked only on every tenth read
                base = forgotten.write(base, base)
            assert Path(uri, "_delta_log", f"{base.version:020}.json").exists()
            forgotten.tidy()
            assert not list(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))
            with pytest.raises(StoreReplacedError):
                forgotten.read()
            assert current.write(current.read(), current.read()).version == 1
    assert DeltaTable(uri).version() == 1


def test_interleaved_commits_into_a_restored_copy_are_withdrawn(
    uri: str, mine: DeltaStore, theirs: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "is_local", False)  # storage accounts are checked only on every tenth read
    shutil.copytree(uri, f"{uri}-copy")
    with DeltaStore(uri) as store:
        copied = store.read()
        for _ in range(3):
            committed(store, Heartbeat(by=BOB, at_ms=9))
    handles = [(mine, ANN), (theirs, BOB)]
    for handle, _ in handles:
        handle.read()
    shutil.rmtree(uri)
    shutil.move(f"{uri}-copy", uri)
    for handle, author in handles * 10:
        with contextlib.suppress(StoreReplacedError):
            committed(handle, Heartbeat(by=author, at_ms=9))
    for handle, _ in handles:
        with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK"):
            handle.read()
    with DeltaStore(uri) as fresh:
        assert fresh.read() == copied


def test_incomplete_listing_is_not_a_replaced_table(
    uri: str, mine: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of a local folder can miss a file created at the same time."""
    committed(mine, RENEWAL)
    listed = Folder.listed
    monkeypatch.setattr(Folder, "listed", lambda *args: [file for file in listed(*args) if "1.json" not in file.name])

    def fail(folder: Folder) -> DeltaTable:
        raise DeltaError("found gap")

    monkeypatch.setattr(Folder, "open_table", fail)
    with DeltaStore(uri) as fresh, raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", reason="found gap"):
        fresh.read()


# --- concurrent creation -----------------------------------------------------------------------------------------


def test_member_joins_a_concurrently_created_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = (DeltaStore(str(tmp_path / "leases")) for _ in range(2))
    walk, first = os.walk, [True]

    def listed(*args: Any) -> Any:
        if first and first.pop():
            theirs.create(GROUP)
        return walk(*args)

    monkeypatch.setattr(os, "walk", listed)
    with mine, theirs:
        mine.create(GROUP)
        assert not first, "the folder was listed before there was a table"
        assert mine.read() == theirs.read()
