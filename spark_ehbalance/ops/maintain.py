"""`ehbalance maintain`: clean up a lease table."""

from __future__ import annotations

from spark_ehbalance.ops.arguments import LeaseTable, StorageOptions
from spark_ehbalance.ops.common import say


def maintain(lease_table: LeaseTable, storage: StorageOptions) -> None:
    """Clean up a lease table, more thoroughly than its group's leader does, while queries run.

    It compacts the history. Files that the table or its history did not write stay.
    """
    with storage.open(lease_table, needs_members=True) as store:
        group = store.read().group
        store.maintain()
    say(f"{lease_table}, of {group}, was cleaned up.")
