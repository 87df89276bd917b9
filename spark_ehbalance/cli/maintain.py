"""`ehbalance maintain`: clean up a group's lease table."""

from __future__ import annotations

from spark_ehbalance.cli.common import say
from spark_ehbalance.cli.options import LeaseTable, StorageOptions

#: Why there is nothing to do where consumers of the Azure SDKs keep their state.
_LACKS = "which has no log and no old files: there is nothing to clean up"


def maintain(lease_table: LeaseTable, storage: StorageOptions) -> None:
    """Clean up a lease table and its history, more thoroughly than the group's leader does.

    It compacts the history. Files that the table or its history did not write stay.
    """
    with storage.open(lease_table, lacks=_LACKS) as store:
        store.read()
        store.maintain()
    say(f"The lease table {lease_table} was cleaned up.")
