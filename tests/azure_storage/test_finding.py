"""The lease tables in a container are found."""

from __future__ import annotations

from chaos.storage.azurite import storage_options
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.finding import lease_tables
from tests.azure_storage.tables import Table
from tests.stores.delta_tables import change
from tests.stores.store_conformance import ANN, filled


def test_tables_are_found_in_a_container_and_in_folders_of_it(table: Table) -> None:
    options, root = storage_options(table.storage), f"az://{table.container}"
    with DeltaStore(f"{root}/deep/with%20space", options) as store:
        filled(store, ANN, owned=("0",))
        store.record([change(1)])
    table.blobs().upload_blob("deep/notes/a.txt", b"notes")
    found = [*lease_tables(root, options)]
    assert found == [f"{root}/deep/with%20space", f"{root}/leases"]
    assert [*lease_tables(f"{root}/leases", options)] == [f"{root}/leases"]
    with DeltaStore(found[0], options) as store:
        assert "ann" in store.read().members
