"""The lease tables in a container are found, and maintained."""

from __future__ import annotations

import pytest

from chaos.storage.azurite import KEY, storage_options
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.finding import lease_tables
from tests.azure_storage.tables import Table
from tests.lease_table.delta_tables import change
from tests.lease_table.store_conformance import ANN, filled
from tests.ops.command import Command


def test_tables_are_found_and_maintained_in_a_container_and_in_folders_of_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, ehbalance: Command
) -> None:
    options, root = storage_options(table.storage), f"az://{table.container}"
    with DeltaStore(f"{root}/deep/with%20space", options) as store:
        filled(store, ANN, owned=("0",))
        store.record([change(1)])
    table.blobs().upload_blob("deep/notes/a.txt", b"notes")
    found = [*lease_tables(root, options)]
    assert found == [f"{root}/deep/with%20space", f"{root}/leases"]
    assert [*lease_tables(f"{root}/leases", options)] == [f"{root}/leases"]

    monkeypatch.setenv("ACCOUNT_KEY", KEY)
    key = options.pop("azure_storage_account_key")
    given = {**options, "azure_storage_account_key": "env:ACCOUNT_KEY"}
    arguments = [text for name, value in given.items() for text in ("--storage-option", f"{name}={value}")]
    printed = ehbalance.succeeds("maintain", root, *arguments).out
    assert [line.partition(",")[0] for line in printed.splitlines()] == found
    assert key not in printed
