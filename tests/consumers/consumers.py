"""Consumers that share a hub through a lease table, without azure-eventhub's client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.query.queries import Group
from tests.query.support import HUB
from tests.waiting import wait_until

OPERATOR = Author("operator", "")

Ownership = dict[str, Any]

#: The clients' load balancing interval in seconds.
INTERVAL = 0.5


class Consumers:
    """A hub, its lease table, and checkpoint stores; methods with a `store` act like azure-eventhub's client."""

    def __init__(self, emulator: Emulator, path: Path, partitions: int) -> None:
        self.group = Group(emulator, path, partitions)
        self.partitions = [str(index) for index in range(partitions)]
        self.named = {
            "fully_qualified_namespace": self.group.options().connection.namespace,
            "eventhub_name": HUB,
            "consumer_group": "$Default",
        }
        self._stores: list[DeltaCheckpointStore] = []

    def store(self, **options: Any) -> DeltaCheckpointStore:
        store = DeltaCheckpointStore(self._options(**options), load_balancing_interval=INTERVAL)
        self._stores.append(store)
        return store

    def owning(self, owner: str, *partitions: str, **options: Any) -> DeltaCheckpointStore:
        """A store whose client owns `partitions`, by default all of them."""
        store = self.store(**options)
        self.own(store, owner, *partitions)
        return store

    def _options(self, **more: str) -> dict[str, str]:
        times = {"leaseDuration": "3s", "handoverTimeout": "3s", "balanceInterval": "500ms"}
        hub = {"connectionString": self.group.emulator.connection_string(HUB), "startingPosition": "earliest"}
        return {"leaseTable": str(self.group.table), **hub, **times, **more}

    def listed(self, store: DeltaCheckpointStore) -> dict[str, Ownership]:
        return {entry["partition_id"]: entry for entry in store.list_ownership(**self.named)}

    def checkpoints(self, store: DeltaCheckpointStore) -> dict[str, dict[str, Any]]:
        return {checkpoint["partition_id"]: checkpoint for checkpoint in store.list_checkpoints(**self.named)}

    def claim(self, store: DeltaCheckpointStore, owner: str, *partitions: str, **more: Any) -> dict[str, Ownership]:
        """Claim partitions that were not listed yet, by default all of them."""
        wanted = [
            {**self.named, "partition_id": partition, "owner_id": owner, **more}
            for partition in partitions or self.partitions
        ]
        return {entry["partition_id"]: entry for entry in store.claim_ownership(wanted)}

    def own(self, store: DeltaCheckpointStore, owner: str, *partitions: str) -> dict[str, Ownership]:
        """Claim free `partitions`, by default all of them, until all are owned, as the client does in every cycle."""
        wanted = partitions or self.partitions
        claimed = wait_until(
            lambda: found if (found := self.claim_listed(store, owner, *wanted)).keys() == {*wanted} else None,
            f"{owner} owns {', '.join(wanted)}",
        )
        self.checkpoints(store)  # like the client before it opens receivers
        return claimed

    def claim_listed(self, store: DeltaCheckpointStore, owner: str, *partitions: str) -> dict[str, Ownership]:
        """Claim listed `partitions` like the client, by default those that are listed as the owner's."""
        listed = self.listed(store)
        wanted = partitions or [p for p, entry in listed.items() if entry["owner_id"] == owner]
        entries = [self.named | {"partition_id": p} | listed.get(p, {}) | {"owner_id": owner} for p in wanted]
        return {entry["partition_id"]: entry for entry in store.claim_ownership(entries)}

    def checkpoint(self, store: DeltaCheckpointStore, partition: str, number: int, offset: str | None = None) -> None:
        store.update_checkpoint(
            {**self.named, "partition_id": partition, "sequence_number": number, "offset": offset or f"at {number}"}
        )

    def snapshot(self) -> Snapshot:
        return self.group.snapshot()

    def leases(self) -> Mapping[str, Lease]:
        return self.snapshot().leases

    def owners(self) -> set[str | None]:
        return {lease.owner for lease in self.leases().values()}

    def lease(self, partition: str) -> Lease:
        return self.leases()[partition]

    def shares(self) -> list[int]:
        leases = self.snapshot().leases.values() if self.group.exists() else ()
        return sorted(Counter(lease.owner for lease in leases if lease.owner).values())

    def requested_from(self, member: str) -> list[str]:
        """The partitions whose handover to `member` is pending."""
        return [p for p, lease in self.snapshot().leases.items() if lease.handover and lease.handover.to == member]

    def order(self, transition: Transition) -> None:
        with DeltaStore(str(self.group.table)) as table:
            commit(table, table.read(), [transition])

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self.group.close()
