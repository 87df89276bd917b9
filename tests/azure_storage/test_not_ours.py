"""Blobs that the lease table did not write are never removed, and no table is made among them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from chaos.storage.azurite import KEY, storage_options
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreError, StoreFormatError
from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.blob import BlobStore
from spark_ehbalance.lease_table.delta import DeltaStore, history, maintenance
from spark_ehbalance.lease_table.delta.folder import Folder
from tests.azure_storage.tables import Table
from tests.lease_table.foreign_files import NAMES, OLD
from tests.lease_table.store_conformance import ANN, GROUP, committed, filled
from tests.lease_table.upkeep import assert_only_own_files_go
from tests.ops.command import Command, kept


def test_a_day_of_upkeep_and_all_commands_leave_the_blobs_of_others_alone(
    new_table: Table,
    emulator: Emulator,
    ehbalance: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(history, "_KEPT_HOURS", 0)
    for name in ("LOG_SECONDS", "DATA_SECONDS"):
        monkeypatch.setattr(maintenance, name, -60)  # every blob is old: nobody can set its time
    options = storage_options(new_table.storage)
    for name, value in options.items():
        monkeypatch.setenv(f"AZURE_{name.removeprefix('azure_')}".upper(), value)
    emulator.add_hub("hub", 4)
    assert_only_own_files_go(
        Folder(f"az://{new_table.container}", options),
        options,
        ehbalance,
        kept(emulator.connection_string("hub"), tmp_path),
        lambda: None,
    )


def test_no_table_is_made_among_blobs_of_others(new_table: Table) -> None:
    options = storage_options(new_table.storage)
    for number, (who, name) in enumerate(NAMES.items()):
        table = f"az://{new_table.container}/{number}/leases"
        path = name.format(id=OLD)
        folder = Folder(table, options)
        folder.write(path, b"precious")
        with DeltaStore(table, options) as store, pytest.raises(StoreFormatError, match="not a lease table's"):
            store.create(GROUP)
        assert folder.read(path) == b"precious", who
        assert not folder.is_table()


def test_a_leader_takes_over_no_table_that_was_put_in_the_place_of_the_leases(new_table: Table) -> None:
    """Here, where each check is a request, it commits once more before it knows."""
    options, place = storage_options(new_table.storage), new_table.location
    with new_table.blobs() as container, DeltaStore(place, options) as store:
        filled(store, ANN)
        for number in range(4):
            committed(store, Heartbeat(by=ANN, at_ms=number))
        for blob in list(container.list_blob_names(name_starts_with="leases/")):
            container.delete_blob(blob)
        for number in range(3):
            write_deltalake(place, pa.table({"customer": [number]}), mode="append", storage_options=options)
        committed(store, Heartbeat(by=ANN, at_ms=9))
        with pytest.raises((StoreError, StoreFormatError)):
            store.tidy()
        for _ in range(12):
            with contextlib.suppress(StoreError):
                store.read()
        left = set(container.list_blob_names(name_starts_with="leases/_delta_log/"))
    found = DeltaTable(place, storage_options=options)
    assert (found.version(), found.to_pyarrow_table().num_rows) == (2, 3)
    assert left == {f"leases/_delta_log/{version:020}.json" for version in range(3)}


def test_marks_of_empty_folders_are_no_obstacle(new_table: Table) -> None:
    with new_table.blobs() as container:
        for name in ("leases", "leases/", "leases/_delta_log/"):
            container.upload_blob(name, b"")
    with new_table.undisturbed() as store:
        store.create(GROUP)
        assert store.read().leases == {}


def test_of_a_group_in_a_container_its_own_blobs_are_removed(new_table: Table) -> None:
    group = Group("ns", "hub", "group")
    others = ["ns/hub/group/notes.txt", "ns/hub/group/ownership/0/backup", "ns/hub/group2/ownership/0", "part.parquet"]
    with new_table.blobs() as container, BlobStore(container.url, {"account_key": KEY}, group=group) as store:
        for name in others:
            container.upload_blob(name, b"precious")
        filled(store, ANN, partitions=("0",), owned=("0",), at=Position(-1, "-1"), group=group)
        assert len([*container.list_blobs()]) > len(others)
        store.erase()
        assert sorted(each.name for each in container.list_blobs()) == sorted(others)
