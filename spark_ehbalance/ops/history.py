"""`ehbalance history`: a group's ownership changes and operator commands."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from spark_ehbalance.ops.arguments import AsJson, LeaseTable, StorageOptions
from spark_ehbalance.ops.common import change_text, console, echo, wrapped


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
    out = console()
    for change in changes:
        partition = "" if change.partition is None else f"partition {change.partition}  "
        out.print(wrapped(change_text(change, partition), out.width), soft_wrap=True)
