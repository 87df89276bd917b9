"""The lease tables in a container are found, and maintained."""

from __future__ import annotations

import pytest

from chaos.storage.azurite import KEY, storage_options
from jobs.maintain_leases import maintain
from spark_ehbalance.job.leases import LeaseTables
from spark_ehbalance.job.settings import PREFIX
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.finding import lease_tables
from tests.azure_storage.tables import Table
from tests.stores.delta_tables import change
from tests.stores.store_conformance import ANN, filled


def test_tables_are_found_and_maintained_in_a_container_and_in_folders_of_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
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
    del options["azure_storage_account_key"]
    given = {f"source.storageOptions.{name}": value for name, value in options.items()}
    given |= {"source.storageSecrets.azure_storage_account_key": "env:ACCOUNT_KEY"}
    given |= {"leaseTables": root}
    maintain(None, LeaseTables.read({PREFIX + name: value for name, value in given.items()}, {}))  # type: ignore[arg-type]
