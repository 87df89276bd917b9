"""`ehbalance init` and `ehbalance status`: make a group's lease table, and look at it."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ehbalance.cli.common import LeaseTable, StorageOption, age, iso, open_store, pairs
from spark_ehbalance.errors import OptionError
from spark_ehbalance.hub.metadata import HubMetadata
from spark_ehbalance.leases.model import Snapshot
from spark_ehbalance.options import Options, stream_options

#: Seconds between two looks of `status --watch`.
_WATCH_INTERVAL = 1.0


def init(
    lease_table: LeaseTable,
    event_hub_name: Annotated[str | None, typer.Option(help="The event hub.")] = None,
    fully_qualified_namespace: Annotated[str | None, typer.Option(help="Its namespace, for Entra ID.")] = None,
    connection_string: Annotated[
        str | None, typer.Option(envvar="EHBALANCE_CONNECTION_STRING", help="Or a connection string.")
    ] = None,
    credential: Annotated[str | None, typer.Option(help="Which Entra ID credential to use.")] = None,
    consumer_group: Annotated[str, typer.Option(help="The consumer group that the queries share.")] = "$Default",
    storage_option: StorageOption = None,
) -> None:
    """Make the lease table of a group, or check the one that is there.

    A query makes it as well when it starts; this is for whoever wants to see first that everything fits.
    """
    given = {
        "leaseTable": lease_table,
        "eventHubName": event_hub_name,
        "fullyQualifiedNamespace": fully_qualified_namespace,
        "connectionString": connection_string,
        "credential": credential,
        "consumerGroup": consumer_group,
        **{f"storageOptions.{name}": value for name, value in pairs(storage_option).items()},
    }
    options = stream_options({name: value for name, value in given.items() if value is not None})
    partitions = _partitions(options)
    group = options.connection.group(options.consumer_group)
    with open_store(lease_table, storage_option) as store:
        there = store.exists()
        store.create(group)
    what = "is there" if there else "was made"
    typer.echo(f"The lease table {lease_table} of {group} {what}; the hub has {len(partitions)} partitions.")


def status(
    lease_table: LeaseTable,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Show who owns which partition of a group, and how far it has read."""
    if watch and as_json:
        raise OptionError("--watch and --json are both given: set one")
    with open_store(lease_table, storage_option) as store:
        if as_json:
            typer.echo(json.dumps(status_json(store.read()), indent=2))
        elif not watch:
            Console().print(status_table(store.read(), _now_ms()))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    live.update(status_table(store.read(), _now_ms()), refresh=True)
                    time.sleep(_WATCH_INTERVAL)


def status_json(snapshot: Snapshot) -> dict[str, Any]:
    """The state of a group for programs. Times are ISO 8601; `sequenceNumber` is that of the last finished event."""
    return {
        "namespace": snapshot.group.namespace,
        "eventHub": snapshot.group.hub,
        "consumerGroup": snapshot.group.consumer_group,
        "version": snapshot.version,
        "leader": snapshot.leader,
        "partitions": [
            {
                "partition": lease.partition,
                "owner": lease.owner,
                "epoch": lease.epoch,
                "renewedAt": iso(lease.renewed_at_ms),
                "ownedSince": iso(lease.owned_since_ms),
                "sequenceNumber": lease.checkpoint and lease.checkpoint.sequence_number,
                "nextOwner": lease.handover and lease.handover.to,
            }
            for lease in snapshot.leases.values()
        ],
        "members": [
            {
                "member": member.id,
                "host": member.host,
                "state": member.state.value,
                "startedAt": iso(member.started_at_ms),
                "renewedAt": iso(member.renewed_at_ms),
                "partitions": [lease.partition for lease in snapshot.owned_by(member.id)],
            }
            for member in sorted(snapshot.members.values(), key=lambda member: member.joined)
        ],
    }


def status_table(snapshot: Snapshot, now_ms: int) -> Table:
    """The state of a group for people. Ages are by this machine's clock, so they show other machines' skew."""
    table = Table(title=f"{snapshot.group}, {len(snapshot.members)} members", title_justify="left")
    for column in ("partition", "owner", "epoch", "read up to", "renewed", "owned for", "next owner"):
        table.add_column(column, justify="right" if column in ("partition", "epoch", "read up to") else "left")
    for lease in snapshot.leases.values():
        owned = lease.owner is not None
        table.add_row(
            lease.partition,
            Text(lease.owner or "nobody", style="" if owned else "dim"),  # a plain str may hold an emoji code
            str(lease.epoch),
            "" if lease.checkpoint is None else str(lease.checkpoint.sequence_number),
            f"{age(now_ms - lease.renewed_at_ms)} ago" if owned else "",
            age(now_ms - lease.owned_since_ms) if owned else "",
            Text(lease.handover.to if lease.handover else ""),
        )
    return table


def _partitions(options: Options) -> tuple[str, ...]:
    metadata = HubMetadata(options.connection, options.consumer_group)
    try:
        return metadata.partition_ids()
    finally:
        metadata.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
