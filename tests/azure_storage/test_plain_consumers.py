"""Plain consumers find a lease table on Azure Storage by their storage options."""

from __future__ import annotations

import pytest

from chaos.storage.azurite import storage_options
from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreUnavailableError
from tests.azure_storage.tables import Table

HUB = "hub"


def test_a_consumer_makes_its_table(emulator: Emulator, new_table: Table) -> None:
    emulator.add_hub(HUB, 1)
    hub, options = emulator.connection_string(HUB), storage_options(new_table.storage)
    with DeltaCheckpointStore(new_table.location, storage_options=options, connection_string=hub) as store:
        whose = {"fully_qualified_namespace": f"localhost:{emulator.port}", "eventhub_name": HUB}
        assert not list(store.list_ownership(**whose, consumer_group="$Default"))
    with new_table.undisturbed() as made:
        assert made.read().group.hub == HUB


def test_a_wrong_key_is_refused_with_the_location(storage: str) -> None:
    wrong = storage_options(storage) | {"azure_storage_account_key": "d3Jvbmc="}
    store = DeltaCheckpointStore("az://nothing/leases", storage_options=wrong)
    with pytest.raises(StoreUnavailableError, match="az://nothing/leases"):
        store.list_ownership("namespace", "hub", "$Default")
