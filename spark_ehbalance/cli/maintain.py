"""`ehbalance maintain`: clean up a group's lease table, or repair it."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ehbalance.cli.common import say
from spark_ehbalance.cli.options import LeaseTable, StorageOptions
from spark_ehbalance.stores.base import Repair

#: Why there is nothing to do where consumers of the Azure SDKs keep their state.
_LACKS = "which has no log and no old files: there is nothing to clean up or to repair"


def maintain(
    lease_table: LeaseTable,
    storage: StorageOptions,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair a table that a crash or another program's write has damaged.")
    ] = False,
) -> None:
    """Clean up a lease table and its history, more thoroughly than the group's leader does.

    It compacts the history. Files that the table or its history did not write stay.
    """
    with storage.open(lease_table, lacks=_LACKS) as store:
        if repair:
            _report(lease_table, store.repair())
            return
        store.read()
        store.maintain()
    say(f"The lease table {lease_table} was cleaned up.")


def _report(lease_table: str, done: Repair) -> None:
    if not done.problems:
        say(f"The lease table {lease_table} is sound: nothing was changed.")
        return
    for problem in done.problems:
        say(f"Found: {problem}.")
    for partition, lease in done.leases.items():
        position = (
            "was never read" if lease.checkpoint is None else f"continues at sequence number {lease.checkpoint.next}"
        )
        say(f"Partition {partition} {position}, with epoch {lease.epoch}, owned by {lease.owner or 'nobody'}.")
    say(f"The lease table {lease_table} is repaired. Copies of what was removed or replaced are in {done.kept}")
