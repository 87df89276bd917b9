"""`ehbalance status`: the state of a group, once or continuously."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from spark_ehbalance.cli.common import age, console, iso, now_ms, table
from spark_ehbalance.cli.options import AsJson, LeaseTable, StorageOptions
from spark_ehbalance.errors import OptionError
from spark_ehbalance.leases.model import Member, MemberLoad
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.group import Group as NamedGroup
from spark_ehbalance.values.secrets import shown

#: Seconds between two refreshes of `status --watch`.
_WATCH_INTERVAL = 1.0


def status(
    lease_table: LeaseTable,
    storage: StorageOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: AsJson = False,
    group: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/HUB/GROUP", help="Which group, in a container that has several.")
    ] = None,
) -> None:
    """Show who owns which partition of a group, how far it has read, and the load of its members.

    A container of the Azure SDKs' checkpoint store keeps less: what is missing is shown as "-".
    """
    if watch and as_json:
        raise OptionError("--watch and --json are both given: set one")
    with storage.open(lease_table, group=None if group is None else _group(group)) as store:
        if as_json:
            typer.echo(json.dumps(status_json(store.read(), store.keeps_all), indent=2))
        elif not watch:
            console().print(status_tables(store.read(), now_ms(), store.keeps_all))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    live.update(status_tables(store.read(), now_ms(), store.keeps_all), refresh=True)
                    time.sleep(_WATCH_INTERVAL)


def _group(text: str) -> NamedGroup:
    names = text.split("/")
    if len(names) != 3 or not all(names):
        raise OptionError(f"--group={shown(text)} is wrong: allowed is NAMESPACE/HUB/GROUP")
    return NamedGroup.of(*names)


def status_json(snapshot: Snapshot, keeps_all: bool) -> dict[str, Any]:
    """The state of a group for programs. What a store without `keeps_all` does not keep is null.

    Times are ISO 8601. `sequenceNumber` is that of the last finished event. Rates are in events per second, backlogs in
    events; `cpu` is from 0 to 1. `connections` to the namespace are open between two batches: one for each
    partition that is owned, and one of each member. Lease durations are in seconds: the group's, and the one by
    which each member renews; null: unknown. `commitMs` is what a commit takes the member. `inBatchSince` is when the
    table has heard of a batch that has not ended as far as it knows; loads are as of its beginning.
    """
    return {
        "namespace": snapshot.group.namespace,
        "eventHub": snapshot.group.hub,
        "consumerGroup": snapshot.group.consumer_group,
        "version": snapshot.version if keeps_all else None,
        "leader": snapshot.leader,
        "leaseDuration": _seconds(snapshot.lease_duration_ms),
        "connections": _connections(snapshot, keeps_all),
        "partitions": [
            {
                "partition": lease.partition,
                "owner": lease.owner,
                "epoch": lease.epoch if keeps_all else None,
                "renewedAt": iso(lease.renewed_at_ms),
                "ownedSince": iso(lease.owned_since_ms) if keeps_all else None,
                "sequenceNumber": lease.checkpoint and lease.checkpoint.sequence_number,
                "nextOwner": lease.handover and lease.handover.to,
                "pin": lease.pin and asdict(lease.pin),
                "load": lease.load and asdict(lease.load),
            }
            for lease in snapshot.leases.values()
        ],
        "members": [_member_json(each, snapshot) for each in _members(snapshot, keeps_all)],
    }


def _member_json(member: Member, snapshot: Snapshot) -> dict[str, Any]:
    known = member.joined > 0
    return {
        "member": member.id,
        "host": member.host if known else None,
        "state": member.state.value if known else None,
        "strategy": member.strategy if known else None,
        "maxPartitionsOwned": member.max_owned,
        "startedAt": iso(member.started_at_ms) if known else None,
        "renewedAt": iso(member.renewed_at_ms),
        "partitions": [lease.partition for lease in snapshot.owned_by(member.id)],
        "pinned": [each.partition for each in snapshot.leases.values() if each.pin and each.pin.to == member.id],
        "load": member.load and _member_load(member.load),
        "leaseDuration": _seconds(member.lease_duration_ms),
        "commitMs": member.commit_ms,
        "inBatchSince": None if (since := _in_batch_since_ms(member, snapshot)) is None else iso(since),
    }


def _in_batch_since_ms(member: Member, snapshot: Snapshot) -> int | None:
    """When the table has heard of the member's batch; None if the last one of which it knows has ended."""
    runs = (each for each in snapshot.queries.values() if each.run == member.incarnation)
    return next((each.at_ms for each in runs if each.begun > each.batch), None)


def _members(snapshot: Snapshot, keeps_all: bool) -> list[Member]:
    """The members by age. Where the store keeps none, they are those who own something, and `joined` is 0."""
    if keeps_all:
        return sorted(snapshot.members.values(), key=lambda member: member.joined)
    last_seen: dict[str, int] = {}
    for lease in snapshot.leases.values():
        if lease.owner is not None:
            last_seen[lease.owner] = max(lease.renewed_at_ms, last_seen.get(lease.owner, 0))
    return [Member(id, "", 0, renewed_at_ms=at_ms) for id, at_ms in sorted(last_seen.items())]


def _connections(snapshot: Snapshot, keeps_all: bool) -> int:
    owned = sum(lease.owner is not None for lease in snapshot.leases.values())
    return owned + len(_members(snapshot, keeps_all))


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _member_load(load: MemberLoad) -> dict[str, float | None]:
    return {"rate": load.rate, "backlog": load.backlog, "batchSeconds": load.batch_seconds, "cpu": load.cpu}


def status_tables(snapshot: Snapshot, now_ms: int, keeps_all: bool) -> Group:
    """The state of a group for people. Ages are by this machine's clock, so they include the skew of other clocks."""
    return Group(_partition_table(snapshot, now_ms, keeps_all), _member_table(snapshot, now_ms, keeps_all))


def _partition_table(snapshot: Snapshot, now_ms: int, keeps_all: bool) -> Table:
    title = f"{snapshot.group}, {len(_members(snapshot, keeps_all))} {'members' if keeps_all else 'owners'}"
    if (seconds := _seconds(snapshot.lease_duration_ms)) is not None:
        title += f", lease duration {seconds:g} s"
    title += f", {_connections(snapshot, keeps_all)} connections"
    rows = []
    for lease in snapshot.leases.values():
        owned, pin = lease.owner is not None, lease.pin
        rows.append(
            (
                lease.partition,
                lease.owner or "nobody",
                lease.epoch,
                lease.checkpoint and lease.checkpoint.sequence_number,
                lease.load and f"{lease.load.backlog:,.0f}",
                f"{age(now_ms - lease.renewed_at_ms)} ago" if owned else "",
                age(now_ms - lease.owned_since_ms) if owned else "",
                lease.handover and lease.handover.to,
                pin and f"{pin.to}{' (transfer)' if pin.transfer else ''}",
            )
        )
    columns = (
        "partition",
        "owner",
        "epoch",
        "read up to",
        "backlog",
        "renewed",
        "owned for",
        "next owner",
        "pinned to",
    )
    unknown = () if keeps_all else ("epoch", "backlog", "owned for", "next owner", "pinned to")
    return table(columns, rows, title=title, right=("partition", "epoch", "read up to", "backlog"), unknown=unknown)


def _batch(member: Member, snapshot: Snapshot, now_ms: int) -> str:
    """What a batch takes the member on average, and for how long its batch has been running."""
    mean, since = member.load and f"{member.load.batch_seconds:.1f} s", _in_batch_since_ms(member, snapshot)
    return ", ".join(each for each in (mean, since and f"now {age(now_ms - since)}") if each)


def _member_table(snapshot: Snapshot, now_ms: int, keeps_all: bool) -> Table:
    rows = []
    for member in _members(snapshot, keeps_all):
        load, owned = member.load, len(snapshot.owned_by(member.id))
        rows.append(
            (
                member.id,
                member.host,
                member.state.value,
                member.strategy,
                owned if member.max_owned is None else f"{owned} of at most {member.max_owned}",
                sum(each.pin is not None and each.pin.to == member.id for each in snapshot.leases.values()),
                load and f"{load.rate:,.0f}",
                load and f"{load.backlog:,.0f}",
                _batch(member, snapshot, now_ms),
                f"{load.cpu:.0%}" if load and load.cpu is not None else "",
                f"{age(now_ms - member.renewed_at_ms)} ago",
            )
        )
    texts, load_columns = ("host", "state", "strategy"), ("pinned", "events/s", "backlog", "batch", "host CPU")
    columns = ("member", *texts, "partitions", *load_columns, "last seen")
    unknown = () if keeps_all else (*texts, *load_columns)
    return table(columns, rows, right=("partitions", *load_columns, "last seen"), unknown=unknown)
