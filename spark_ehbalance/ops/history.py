"""`ehbalance history`: the history of a group, as a table."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from spark_ehbalance.ops.arguments import AsJson, LeaseTable, StorageOptions
from spark_ehbalance.ops.common import console, table
from spark_ehbalance.text import iso


def history(
    lease_table: LeaseTable,
    storage: StorageOptions,
    as_json: AsJson = False,
) -> None:
    """Show every change of owner in a group and every order of an operator, oldest first."""
    with storage.open(lease_table, needs_members=True) as store:
        changes = store.history()
        if not changes:
            store.read()  # says so if there is no such table
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in changes], indent=2))
        return
    columns = ("time", "partition", "event", "from", "to", "epoch", "read up to", "by", "why")
    rows = [
        (
            iso(each.at_ms),
            each.partition,
            each.event,
            each.owner_before or "nobody",
            each.owner or "nobody",
            each.epoch,
            each.sequence_number,
            each.by,
            each.why,
        )
        for each in changes
    ]
    console().print(table(columns, rows))
