"""`ehbalance history`: a group's ownership changes and operator commands."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console

from spark_ehbalance.ops.arguments import AsJson, LeaseTable, StorageOptions
from spark_ehbalance.ops.common import change_text, console, echo, table, wrapped
from spark_ehbalance.text import iso


def history(
    lease_table: LeaseTable,
    storage: StorageOptions,
    as_json: AsJson = False,
) -> None:
    """Show all ownership changes and operator commands, oldest first."""
    with storage.open(lease_table, needs_members=True) as store:
        changes = store.history()
        if not changes:
            store.read()  # raises if the table is missing
    if as_json:
        typer.echo(json.dumps([asdict(change) for change in changes], indent=2))
        return
    if not changes:
        echo(f"No changes of ownership are recorded in {lease_table}.")
        return
    out = console()
    columns = ("time", "partition", "event", "from", "to", "epoch", "read up to", "by", "why")
    rows = [
        (
            iso(change.at_ms),
            change.partition,
            change.event,
            change.owner_before or "nobody",
            change.owner or "nobody",
            change.epoch,
            change.sequence_number,
            change.by,
            change.why,
        )
        for change in changes
    ]
    rendered = table(columns, rows)
    if Console(width=10_000).measure(rendered).maximum <= out.width:
        out.print(rendered)
        return
    for change in changes:
        partition = "" if change.partition is None else f"partition {change.partition}  "
        out.print(wrapped(change_text(change, partition), out.width), soft_wrap=True)
