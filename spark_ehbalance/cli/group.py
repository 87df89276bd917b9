"""`ehbalance init` and `ehbalance status`: make a group's lease table, and look at it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ehbalance.cli.common import (
    ConnectionString,
    ConsumerGroup,
    Credential,
    EventHubName,
    LeaseTable,
    Namespace,
    StorageOption,
    age,
    cell,
    group_options,
    iso,
    now_ms,
    open_store,
    say,
)
from spark_ehbalance.cli.remembered import FromCheckpoint, Replaces, check_places, put_back, remembered
from spark_ehbalance.errors import OptionError
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from spark_ehbalance.leases.model import MemberLoad
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.options import Options, checked_location

#: Seconds between two looks of `status --watch`.
_WATCH_INTERVAL = 1.0


def init(
    lease_table: LeaseTable,
    event_hub_name: EventHubName = None,
    fully_qualified_namespace: Namespace = None,
    connection_string: ConnectionString = None,
    credential: Credential = None,
    consumer_group: ConsumerGroup = "$Default",
    from_checkpoint: FromCheckpoint = None,
    replaces: Replaces = None,
    storage_option: StorageOption = None,
) -> None:
    """Make the lease table of a group, or check the one that is there.

    A query makes it as well when it starts; this is for whoever wants to see first that everything fits. With
    --from-checkpoint, given once for each query of the group, it gets the positions that a table had which is lost;
    what it knows already stays as it is.
    """
    options = group_options(
        lease_table,
        event_hub_name,
        fully_qualified_namespace,
        connection_string,
        credential,
        consumer_group,
        storage_option,
    )
    # The hub is asked after the checkpoints were read: running queries go on meanwhile.
    memory = remembered(from_checkpoint or [], replaces, options) if from_checkpoint or replaces else None
    states = _states(options)
    group = options.connection.group(options.consumer_group)
    with open_store(lease_table, storage_option) as store:
        there, restored = store.exists(), ""
        if memory:
            check_places(memory, states)
            restored = put_back(store, checked_location(lease_table), group, memory, states)
        store.create(group)
    what = "is there" if there else "was made"
    say(f"The lease table {lease_table} of {group} {what}; the hub has {len(states)} partitions.{restored}")


def status(
    lease_table: LeaseTable,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Show who owns which partition of a group and how far it has read, and what its members carry."""
    if watch and as_json:
        raise OptionError("--watch and --json are both given: set one")
    with open_store(lease_table, storage_option) as store:
        if as_json:
            typer.echo(json.dumps(status_json(store.read()), indent=2))
        elif not watch:
            Console().print(status_tables(store.read(), now_ms()))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    live.update(status_tables(store.read(), now_ms()), refresh=True)
                    time.sleep(_WATCH_INTERVAL)


def status_json(snapshot: Snapshot) -> dict[str, Any]:
    """The state of a group for programs. Times are ISO 8601; `sequenceNumber` is that of the last finished event. Rates
    are in events per second, backlogs in events, `cpu` is from 0 to 1."""
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
                "pin": lease.pin and asdict(lease.pin),
                "load": lease.load and asdict(lease.load),
            }
            for lease in snapshot.leases.values()
        ],
        "members": [
            {
                "member": member.id,
                "host": member.host,
                "state": member.state.value,
                "strategy": member.strategy,
                "maxPartitionsOwned": member.max_owned,
                "startedAt": iso(member.started_at_ms),
                "renewedAt": iso(member.renewed_at_ms),
                "partitions": [lease.partition for lease in snapshot.owned_by(member.id)],
                "pinned": [
                    each.partition for each in snapshot.leases.values() if each.pin and each.pin.to == member.id
                ],
                "load": member.load and _member_load(member.load),
            }
            for member in sorted(snapshot.members.values(), key=lambda member: member.joined)
        ],
    }


def _member_load(load: MemberLoad) -> dict[str, float | None]:
    return {"rate": load.rate, "backlog": load.backlog, "batchSeconds": load.batch_seconds, "cpu": load.cpu}


def status_tables(snapshot: Snapshot, now_ms: int) -> Group:
    """The state of a group for people. Ages are by this machine's clock, so they show other machines' skew."""
    return Group(_partition_table(snapshot, now_ms), _member_table(snapshot, now_ms))


def _partition_table(snapshot: Snapshot, now_ms: int) -> Table:
    table = Table(title=cell(f"{snapshot.group}, {len(snapshot.members)} members"), title_justify="left")
    for column in ("partition", "owner", "epoch", "read up to", "renewed", "owned for", "next owner", "pinned to"):
        table.add_column(column, justify="right" if column in ("partition", "epoch", "read up to") else "left")
    for lease in snapshot.leases.values():
        owned, pin = lease.owner is not None, lease.pin
        table.add_row(
            cell(lease.partition),
            cell(lease.owner) if owned else Text("nobody", style="dim"),
            str(lease.epoch),
            "" if lease.checkpoint is None else str(lease.checkpoint.sequence_number),
            f"{age(now_ms - lease.renewed_at_ms)} ago" if owned else "",
            age(now_ms - lease.owned_since_ms) if owned else "",
            cell(lease.handover.to if lease.handover else ""),
            cell(f"{pin.to} (transfer)" if pin and pin.transfer else pin.to if pin else ""),
        )
    return table


def _member_table(snapshot: Snapshot, now_ms: int) -> Table:
    table = Table()
    for column in ("member", "host", "state", "strategy"):
        table.add_column(column)
    for column in ("partitions", "pinned", "events/s", "backlog", "batch", "host CPU", "heard of"):
        table.add_column(column, justify="right")
    for member in sorted(snapshot.members.values(), key=lambda member: member.joined):
        load, owned = member.load, len(snapshot.owned_by(member.id))
        table.add_row(
            *map(cell, (member.id, member.host, member.state.value, member.strategy)),
            str(owned) if member.max_owned is None else f"{owned} of at most {member.max_owned}",
            str(sum(each.pin is not None and each.pin.to == member.id for each in snapshot.leases.values())),
            f"{load.rate:,.0f}" if load else "",
            f"{load.backlog:,.0f}" if load else "",
            f"{load.batch_seconds:.1f} s" if load else "",
            f"{load.cpu:.0%}" if load and load.cpu is not None else "",
            f"{age(now_ms - member.renewed_at_ms)} ago",
        )
    return table


def _states(options: Options) -> Mapping[str, PartitionState]:
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        return metadata.partition_states(metadata.partition_ids())
