"""Plain consumers find a lease table on Azure Storage by their storage options."""

from __future__ import annotations

import pytest

from chaos.storage.azurite import storage_options
from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreUnavailableError
from tests.azure_storage.tables import Table

HUB = "hub"


def test_a_consumer_makes_its_table(emulator: Emulator, new_table: Table) -> None:
    emulator.add_hub(HUB, 1)
    with DeltaCheckpointStore(_options(emulator, new_table.location, storage_options(new_table.storage))) as store:
        whose = {"fully_qualified_namespace": f"localhost:{emulator.port}", "eventhub_name": HUB}
        assert not list(store.list_ownership(**whose, consumer_group="$Default"))
    with new_table.undisturbed() as made:
        assert made.read().group.hub == HUB


def test_a_wrong_key_is_refused_with_the_location(emulator: Emulator, storage: str) -> None:
    emulator.add_hub(HUB, 1)
    wrong = storage_options(storage) | {"azure_storage_account_key": "d3Jvbmc="}
    store = DeltaCheckpointStore(_options(emulator, "az://nothing/leases", wrong))
    with pytest.raises(StoreUnavailableError, match="az://nothing/leases"):
        store.list_ownership(f"localhost:{emulator.port}", HUB, "$Default")


def _options(emulator: Emulator, location: str, storage: dict[str, str]) -> dict[str, str]:
    hub = {"leaseTable": location, "connectionString": emulator.connection_string(HUB)}
    return hub | {f"storageSecrets.{name}": value for name, value in storage.items()}
