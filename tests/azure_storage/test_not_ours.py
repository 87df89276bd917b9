"""Blobs that the lease table did not write are never removed, and no table is made among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, storage_options
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.leases.transitions import AddPartitions, Join
from spark_ehbalance.stores.blob import BlobStore
from spark_ehbalance.stores.delta import DeltaStore, history, maintenance
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position
from tests.azure_storage.tables import Table
from tests.cli.command import Command, kept
from tests.stores.delta_tables import committed
from tests.stores.foreign_files import NAMES, OLD
from tests.stores.store_conformance import ANN, GROUP, claim
from tests.stores.upkeep import assert_only_own_files_go


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


def test_marks_of_empty_folders_are_no_obstacle(new_table: Table) -> None:
    container = ContainerClient(f"{new_table.storage}/{ACCOUNT}", new_table.container, credential=KEY)
    with container:
        for name in ("leases", "leases/", "leases/_delta_log/"):
            container.upload_blob(name, b"")
    with new_table.undisturbed() as store:
        store.create(GROUP)
        assert store.read().leases == {}


def test_of_a_group_in_a_container_its_own_blobs_are_removed(new_table: Table) -> None:
    location, prefix = f"{new_table.storage}/{ACCOUNT}/{new_table.container}", "ns/hub/group/"
    group = Group("ns", "hub", "group")
    others = [f"{prefix}notes.txt", f"{prefix}ownership/0/backup", "ns/hub/group2/ownership/0", "part-00000.parquet"]
    container = ContainerClient(f"{new_table.storage}/{ACCOUNT}", new_table.container, credential=KEY)
    with container, BlobStore(location, {"account_key": KEY}, group=group) as store:
        for name in others:
            container.upload_blob(name, b"precious")
        add = AddPartitions(by=ANN, at_ms=1, partitions=("0",), checkpoint=Position(-1, "-1"))
        committed(store, Join(by=ANN, at_ms=1), add, claim(ANN, "0"))
        assert len([*container.list_blobs()]) > len(others)
        store.erase()
        assert sorted(each.name for each in container.list_blobs()) == sorted(others)
