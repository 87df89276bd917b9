"""Blobs that the lease table did not write are never removed, and no table is created among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.storage.azurite import storage_options
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta import history, maintenance
from spark_ehbalance.lease_table.delta.folder import Folder
from tests.azure_storage.tables import Table
from tests.lease_table.store_conformance import GROUP
from tests.lease_table.upkeep import assert_only_own_files_go
from tests.ops.command import Command, connection_arguments


def test_maintenance_and_commands_keep_foreign_blobs(
    new_table: Table,
    emulator: Emulator,
    ehbalance: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(history, "_KEPT_HOURS", 0)
    for name in ("LOG_SECONDS", "DATA_SECONDS"):
        monkeypatch.setattr(maintenance, name, -60)  # treat every blob as old, because a blob's time cannot be set
    options = storage_options(new_table.storage)
    for name, value in options.items():
        monkeypatch.setenv(f"AZURE_{name.removeprefix('azure_')}".upper(), value)
    emulator.add_hub("hub", 4)
    assert_only_own_files_go(
        Folder(f"az://{new_table.container}", options),
        options,
        ehbalance,
        connection_arguments(emulator.connection_string("hub"), tmp_path),
        lambda: None,
    )


def test_folder_markers_are_ignored(new_table: Table) -> None:
    with new_table.blobs() as container:
        for name in ("leases", "leases/", "leases/_delta_log/"):
            container.upload_blob(name, b"")
    with new_table.undisturbed() as store:
        store.create(GROUP)
        assert store.read().leases == {}
