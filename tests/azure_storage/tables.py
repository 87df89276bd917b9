"""A lease table in Azurite."""

from __future__ import annotations

from dataclasses import dataclass

from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, storage_options
from spark_ehbalance.group.changes import Renew
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.store_conformance import ANN

#: Renews the lease on partition 0, which ann owns.
RENEWAL = Renew(by=ANN, at_ms=5, partition="0", epoch=1)

#: The timeout, in seconds, of a request that is not answered.
PATIENCE = 2.0


@dataclass(frozen=True)
class Table:
    """A lease table in a `container` of the Azurite server at `storage`, behind a proxy."""

    container: str
    storage: str
    proxy: str

    def blobs(self) -> ContainerClient:
        """The container."""
        return ContainerClient(f"{self.storage}/{ACCOUNT}", self.container, KEY)

    @property
    def location(self) -> str:
        return f"az://{self.container}/leases"

    def opened(self, patience: float = PATIENCE) -> DeltaStore:
        """A handle whose requests go through the proxy."""
        return DeltaStore(self.location, storage_options(self.proxy), patience)

    def undisturbed(self) -> DeltaStore:
        """A handle that does not use the proxy."""
        return DeltaStore(self.location, storage_options(self.storage))

    def renewals(self) -> int:
        """The renewal counter of partition 0."""
        with self.undisturbed() as store:
            return store.read().leases["0"].renewal
