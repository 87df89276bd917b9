"""Files that maintenance keeps while other members write, are suspended, or had a wrong clock."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.lease_table.delta import maintenance
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.delta_tables import HOUR_AGO, age, age_all, data_files
from tests.lease_table.store_conformance import BOB, committed
from tests.raising import raises

UNAVAILABLE = "EHB_LEASE_TABLE_UNAVAILABLE"


def _before(monkeypatch: pytest.MonkeyPatch, method: str, action: object) -> None:
    """Call `action` once, immediately before the next call of a folder's `method`."""
    original, calls = getattr(Folder, method), [action]

    def first(self: Folder, *args: object, **kwargs: object) -> object:
        while calls:
            calls.pop()()  # type: ignore[operator]
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Folder, method, first)


def test_data_file_of_a_suspended_writer_is_kept(
    uri: str, mine: DeltaStore, theirs: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for as long as its version is the newest one, unlike all older files."""
    mine.read()

    def tidy() -> None:
        age_all(uri)
        theirs.maintain()  # the checkpoint is new

    _before(monkeypatch, "create", tidy)
    committed(mine, Heartbeat(by=BOB, at_ms=9))
    assert mine.read() == theirs.read()
    theirs.tidy()
    assert len(data_files(uri)) == 1
    with DeltaStore(uri) as fresh:
        assert fresh.read() == mine.read()


def test_kept_versions_have_no_gap(uri: str, mine: DeltaStore) -> None:
    for _ in range(4):
        committed(mine, Heartbeat(by=BOB, at_ms=9))
    files = sorted(Path(uri, "_delta_log").glob("*.json"))
    age([*files[:2], *files[3:]], HOUR_AGO)
    mine.maintain()
    assert sorted(Path(uri, "_delta_log").glob("*.json")) == files[2:]


def test_resumed_maintenance_removes_no_required_file(
    uri: str, mine: DeltaStore, theirs: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DATA_SECONDS", 0.0)  # files that are made older do not count as the same ones

    def others_commit() -> None:
        for _ in range(3):
            committed(theirs, Heartbeat(by=BOB, at_ms=9))

    for method in ("tag", "listed", "remove"):
        mine.read()
        with monkeypatch.context() as patch:
            _before(patch, method, others_commit)
            mine.tidy()
        with DeltaStore(uri) as fresh:
            assert fresh.read() == theirs.read()
    assert len(data_files(uri)) < 9, "nothing was removed"


def test_log_file_with_a_future_time_does_not_age_the_others(
    uri: str, mine: DeltaStore, theirs: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = committed(mine, Heartbeat(by=BOB, at_ms=9))
    log = Path(uri, "_delta_log")
    age([max(log.glob("*.json"))], time.time() + 3600)
    files, logged = data_files(uri), len(list(log.glob("*.json")))
    _before(monkeypatch, "create", theirs.maintain)
    committed(mine, Heartbeat(by=BOB, at_ms=9), base=known)
    assert theirs.read() == mine.read()
    assert data_files(uri) > files
    assert len(list(log.glob("*.json"))) > logged


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_next_checkpoint_replaces_a_truncated_one(uri: str, mine: DeltaStore, left: float) -> None:
    """A crash of the machine can truncate a checkpoint because writers do not wait for the disk."""
    committed(mine, Heartbeat(by=BOB, at_ms=9))
    mine.tidy()
    for checkpoint in Path(uri, "_delta_log").glob("*.checkpoint.parquet"):
        content = checkpoint.read_bytes()
        checkpoint.write_bytes(content[: int(left * len(content))])
    with DeltaStore(uri) as fresh, raises(StoreUnavailableError, UNAVAILABLE, action="opened"):
        fresh.read()
    committed(mine, Heartbeat(by=BOB, at_ms=9))
    mine.tidy()
    with DeltaStore(uri) as fresh:
        assert fresh.read() == mine.read()


def test_checkpoint_is_not_written_into_a_replaced_log(uri: str, mine: DeltaStore, theirs: DeltaStore) -> None:
    committed(mine, Heartbeat(by=BOB, at_ms=9))
    shutil.copytree(uri, f"{uri}-copy")
    for _ in range(3):
        committed(mine, Heartbeat(by=BOB, at_ms=9))
    shutil.rmtree(uri)
    shutil.move(f"{uri}-copy", uri)
    mine.tidy()
    version = theirs.read().version
    assert not list(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))
    assert DeltaTable(uri).version() == version


def test_delta_rs_reads_a_table_from_its_checkpoint_alone(uri: str, mine: DeltaStore) -> None:
    committed(mine, Heartbeat(by=BOB, at_ms=9))
    before = DeltaTable(uri)
    mine.tidy()
    for file in Path(uri, "_delta_log").glob("*.json"):
        file.unlink()
    after = DeltaTable(uri)
    for part in (DeltaTable.version, DeltaTable.schema, DeltaTable.file_uris):
        assert part(after) == part(before)  # type: ignore[operator]
    for name in ("id", "configuration"):
        assert getattr(after.metadata(), name) == getattr(before.metadata(), name)
