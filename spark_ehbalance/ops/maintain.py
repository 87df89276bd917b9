"""`ehbalance maintain`: clean up a lease table."""

from __future__ import annotations

from spark_ehbalance.ops.arguments import LeaseTable, StorageOptions
from spark_ehbalance.ops.common import echo


def maintain(lease_table: LeaseTable, storage: StorageOptions) -> None:
    """Clean up a lease table. Queries may keep running.

    This removes more files than the group's leader does, and compacts the history. Files of other programs are kept.
    """
    with storage.open(lease_table, needs_members=True) as store:
        group = store.read().group
        store.maintain()
    echo(f"Lease table {lease_table} of {group} cleaned up.")
