"""`ehbalance drain`, `history` and `maintain`: looking after a group."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_ehbalance.cli.common import (
    LeaseTable,
    StorageOption,
    Why,
    cell,
    iso,
    now_ms,
    open_store,
    operator,
    order,
    say,
)
from spark_ehbalance.leases.transitions import Drain
from spark_ehbalance.stores.base import Repair


def drain(
    lease_table: LeaseTable,
    owner: Annotated[str, typer.Argument(help="The owner id of a member, as `status` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take partitions again.")] = False,
    why: Why = "",
    storage_option: StorageOption = None,
) -> None:
    """Have a member give back what it owns, each partition after the batch in flight, and take nothing more.

    Its query goes on running, without partitions: stop it when `status` shows that it has none.
    """
    with open_store(lease_table, storage_option) as store:
        order(store, [Drain(by=operator(), at_ms=now_ms(), member=owner, undo=undo, why=why)])
    say(f"{owner} may take partitions again." if undo else f"{owner} is leaving.")


def history(
    lease_table: LeaseTable,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Show every change of ownership of a group and what operators have ordered, the oldest first."""
    with open_store(lease_table, storage_option) as store:
        changes = [each for each in store.history() if partition in (None, each.partition)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in changes], indent=2))
        return
    table = Table()
    for column in ("time", "partition", "event", "from", "to", "epoch", "read up to", "by", "why"):
        table.add_column(column)
    for each in changes:
        owners = (cell(each.owner_before or "nobody"), cell(each.owner or "nobody"))
        numbers = ("" if number is None else str(number) for number in (each.epoch, each.sequence_number))
        what, said = (cell(each.partition), cell(each.event)), (cell(each.by), cell(each.why))
        table.add_row(iso(each.at_ms), *what, *owners, *numbers, *said)
    Console().print(table)


def maintain(
    lease_table: LeaseTable,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend a table that a crash or somebody else's writing has damaged.")
    ] = False,
    storage_option: StorageOption = None,
) -> None:
    """Tidy a lease table and its history up thoroughly, as its leader does in passing while there is one.

    Worth running now and then for a group in which processes are often killed: it also removes files that were
    written but never committed. A table made by an earlier version gets the columns that have come since.
    """
    with open_store(lease_table, storage_option) as store:
        if repair:
            _tell(lease_table, store.repair())
            return
        store.read()
        store.maintain()
    say(f"The lease table {lease_table} is tidied up.")


def _tell(lease_table: str, done: Repair) -> None:
    if not done.problems:
        say(f"The lease table {lease_table} is sound: nothing was changed.")
        return
    for problem in done.problems:
        say(f"Found: {problem}.")
    for partition, lease in done.leases.items():
        place = "was never read" if lease.checkpoint is None else f"goes on at sequence number {lease.checkpoint.next}"
        say(f"Partition {partition} {place}, with epoch {lease.epoch}, owned by {lease.owner or 'nobody'}.")
    say(f"The lease table {lease_table} is mended. What was taken away or replaced is in {done.kept}")
