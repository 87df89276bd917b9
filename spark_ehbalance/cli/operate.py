"""`ehbalance drain`, `history` and `maintain`: what an operator does to a group."""

from __future__ import annotations

import getpass
import json
import socket
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ehbalance.cli.common import LeaseTable, StorageOption, iso, open_store
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.store import commit
from spark_ehbalance.leases.transitions import Drain


def drain(
    lease_table: LeaseTable,
    owner: Annotated[str, typer.Argument(help="The owner id of a member, as `status` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take partitions again.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Have a member give back what it owns, each partition after the batch in flight, and take nothing more.

    Its query goes on running, without partitions: stop it when `status` shows that it has none.
    """
    by = Author(f"operator:{getpass.getuser()}@{socket.gethostname()}", "")
    with open_store(lease_table, storage_option) as store:
        asked = Drain(by=by, at_ms=time.time_ns() // 1_000_000, member=owner, undo=undo)
        snapshot, rejected = commit(store, store.read(), [asked])
    if rejected:
        raise EhBalanceError(f"{rejected[0].reason}; members are {', '.join(sorted(snapshot.members)) or 'none'}")
    typer.echo(f"{owner} may take partitions again." if undo else f"{owner} is leaving.")


def history(
    lease_table: LeaseTable,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Show every change of ownership of a group, the oldest first."""
    with open_store(lease_table, storage_option) as store:
        changes = [each for each in store.history() if partition in (None, each.partition)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in changes], indent=2))
        return
    table = Table()
    for column in ("time", "partition", "event", "from", "to", "epoch", "read up to"):
        table.add_column(column)
    for each in changes:
        read_to = "" if each.sequence_number is None else str(each.sequence_number)
        owners = (Text(each.owner_before or "nobody"), Text(each.owner or "nobody"))
        table.add_row(iso(each.at_ms), each.partition, each.event, *owners, str(each.epoch), read_to)
    Console().print(table)


def maintain(lease_table: LeaseTable, storage_option: StorageOption = None) -> None:
    """Tidy a lease table and its history up thoroughly, as its leader does in passing while there is one.

    Worth running now and then for a group in which processes are often killed: it also removes files that were
    written but never committed.
    """
    with open_store(lease_table, storage_option) as store:
        store.read()
        store.maintain()
    typer.echo(f"The lease table {lease_table} is tidied up.")
