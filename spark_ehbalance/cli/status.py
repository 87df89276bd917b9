"""`ehbalance status`: the state of a group, once or continuously."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from spark_ehbalance.cli.common import age, cell, console, iso, now_ms, table
from spark_ehbalance.cli.options import AsJson, GroupName, LeaseTable, StorageOptions, group_of
from spark_ehbalance.errors import OptionError
from spark_ehbalance.leases.model import Lease, Member, MemberLoad, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.defaults import LEASE_DURATION
from spark_ehbalance.values.lag import Lag

#: Seconds between two refreshes of `status --watch`.
_WATCH_INTERVAL = 1.0

#: Lines of `status --watch` besides rows: the frames of two tables, and three texts.
_OTHER_LINES = 13


def status(
    lease_table: LeaseTable,
    storage: StorageOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: AsJson = False,
    group: GroupName = None,
) -> None:
    """Show who owns which partition of a group, what is unread of it, and the load of its members.

    A container of the Azure SDKs' checkpoint store keeps less: what is missing is shown as "-".
    """
    if watch and as_json:
        raise OptionError("--watch and --json are both given: set one")
    with storage.open(lease_table, group=None if group is None else group_of(group)) as store:
        if as_json:
            typer.echo(json.dumps(status_json(store.read(), now_ms(), store.capabilities.members), indent=2))
        elif not watch:
            out = console()
            out.print(status_tables(store.read(), now_ms(), store.capabilities.members, out.width))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    size = live.console.size
                    known = store.capabilities.members
                    shown = status_tables(store.read(), now_ms(), known, size.width, size.height - 1)
                    live.update(shown, refresh=True)
                    time.sleep(_WATCH_INTERVAL)


def status_json(snapshot: Snapshot, now_ms: int, keeps_all: bool) -> dict[str, Any]:
    """The state of a group for programs. What a store without `keeps_all` does not keep is null.

    Times are ISO 8601. `sequenceNumber` is that of the last finished event. Rates are in events per second, backlogs in
    events; `cpu` is from 0 to 1. `connections` to the namespace are open between two batches: one for each
    partition that is owned, and one of each member. Lease durations are in seconds: the group's, and the one by
    which each member renews; null: unknown. `commitMs` is what a commit takes the member. `inBatchSince` is when the
    table has heard of a batch that has not ended as far as it knows; loads are as of its beginning.

    `lag` is what is unread after the checkpoint, as last measured: `events` from `next` to before `end`, of which the
    oldest has waited for `seconds`; null where that is not known. That of the group is the sum of those that are known,
    the longest wait, and of how many partitions they are.
    """
    lags, (events, seconds) = _lags(snapshot), _sum(_lags(snapshot).values(), now_ms)
    return {
        "namespace": snapshot.group.namespace,
        "eventHub": snapshot.group.hub,
        "consumerGroup": snapshot.group.consumer_group,
        "version": snapshot.version if keeps_all else None,
        "leader": snapshot.leader,
        "leaseDuration": _seconds(snapshot.lease_duration_ms),
        "connections": _connections(snapshot, keeps_all),
        "lag": {"events": events, "seconds": seconds, "partitions": len(lags)} if lags else None,
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
                "lag": _lag_json(lags.get(lease.partition), now_ms),
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
        "inBatchSince": None if (since := snapshot.in_batch_since_ms(member)) is None else iso(since),
    }


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


def _lags(snapshot: Snapshot) -> dict[str, Lag]:
    """What is unread of each partition of which that is known."""
    return {each.partition: lag for each in snapshot.leases.values() if (lag := each.behind)}


def _sum(lags: Collection[Lag], now_ms: int) -> tuple[int, float | None]:
    """How many events are unread, and for how many seconds the oldest has waited; None: not known."""
    waits = [each.seconds(now_ms) for each in lags]
    return sum(each.events for each in lags), max((each for each in waits if each is not None), default=None)


def _lag_json(lag: Lag | None, now_ms: int) -> dict[str, Any] | None:
    if lag is None:
        return None
    return {
        "next": lag.next,
        "end": lag.end,
        "events": lag.events,
        "seconds": lag.seconds(now_ms),
        "unreadSince": None if lag.unread_since_ms is None else iso(lag.unread_since_ms),
        "measuredAt": iso(lag.at_ms),
    }


def status_tables(
    snapshot: Snapshot, now_ms: int, keeps_all: bool, width: int = 10_000, height: int | None = None
) -> Group:
    """The state of a group for people, as wide as that, and as high if `height` is given: then those partitions are
    left out that are least behind. Ages are by this machine's clock, so they include the skew of other clocks."""
    members = _member_table(snapshot, now_ms, keeps_all, width)
    leases, more = [*snapshot.leases.values()], 0
    if height is not None:
        fit = max(1, height - members.row_count - _OTHER_LINES)
        if more := max(0, len(leases) - fit):
            furthest = sorted(leases, key=lambda each: _urgency(each, now_ms), reverse=True)[:fit]
            leases = [each for each in leases if each in furthest]
    return Group(
        cell(_title(snapshot, keeps_all)),
        _partition_table(leases, snapshot, now_ms, keeps_all, width),
        *([cell(f"and {more} partitions that are less behind")] if more else []),
        members,
        *([cell(total)] if (total := _total(snapshot, now_ms)) else []),
    )


def _urgency(lease: Lease, now_ms: int) -> tuple[float, int, bool]:
    if (lag := lease.behind) is None:
        return 0.0, 0, lease.owner is None
    waited = lag.seconds(now_ms)
    return math.inf if waited is None else waited, lag.events, lease.owner is None


def _title(snapshot: Snapshot, keeps_all: bool) -> str:
    title = f"{snapshot.group}, {len(_members(snapshot, keeps_all))} {'members' if keeps_all else 'owners'}"
    if (seconds := _seconds(snapshot.lease_duration_ms)) is not None:
        title += f", lease duration {seconds:g} s"
    return title + f", {_connections(snapshot, keeps_all)} connections"


def _total(snapshot: Snapshot, now_ms: int) -> str:
    """What is unread of all partitions together."""
    lags, partitions = _lags(snapshot), len(snapshot.leases)
    if not lags:
        return ""
    events, seconds = _sum(lags.values(), now_ms)
    text = f"{events:,} events unread"
    if events and seconds:
        some = any(each.seconds(now_ms) is None for each in lags.values())  # and may have waited for longer
        text += f", the oldest for {'at least ' if some else ''}{age(int(1000 * seconds))}"
    if len(lags) < partitions:
        text += f", in the {len(lags)} of {partitions} partitions that tell"
    old_ms = max(now_ms - each.at_ms for each in lags.values())
    return text if old_ms <= _fresh_ms(snapshot) else f"{text}, measured up to {age(old_ms)} ago"


def _fresh_ms(snapshot: Snapshot) -> int:
    """The age beyond which that of a lag is told."""
    return snapshot.lease_duration_ms or int(1000 * LEASE_DURATION)


def _partition_table(leases: Iterable[Lease], snapshot: Snapshot, now_ms: int, keeps_all: bool, width: int) -> Table:
    fresh_ms = _fresh_ms(snapshot)
    rows = []
    for lease in leases:
        owned, pin, lag = lease.owner is not None, lease.pin, lease.behind
        waited = lag.seconds(now_ms) if lag else None
        rows.append(
            (
                lease.partition,
                lease.owner or "nobody",
                lag and f"{lag.events:,}",
                age(int(1000 * waited)) if waited else "",
                f"{age(now_ms - lag.at_ms)} ago" if lag and now_ms - lag.at_ms > fresh_ms else "",
                lease.checkpoint and lease.checkpoint.next,
                lag and lag.end,
                lease.handover and lease.handover.to,
                pin and f"{pin.to}{' (transfer)' if pin.transfer else ''}",
                f"{age(now_ms - lease.renewed_at_ms)} ago" if owned else "",
                age(now_ms - lease.owned_since_ms) if owned else "",
                lease.epoch,
            )
        )
    lags, orders = ("unread", "waiting", "measured", "next", "end"), ("next owner", "pinned to")
    return table(
        ("partition", "owner", *lags, *orders, "renewed", "owned for", "epoch"),
        rows,
        right=("partition", "epoch", *lags),
        unknown=() if keeps_all else ("unread", "waiting", "measured", "end", *orders, "owned for", "epoch"),
        dispensable=(
            "epoch",
            "owned for",
            "renewed",
            "end",
            "pinned to",
            "next",
            "measured",
            "next owner",
            "waiting",
            "unread",
        ),
        width=width,
    )


def _batch(member: Member, snapshot: Snapshot, now_ms: int) -> str:
    """What a batch takes the member on average, and for how long its batch has been running."""
    mean, since = member.load and f"{member.load.batch_seconds:.1f} s", snapshot.in_batch_since_ms(member)
    return ", ".join(each for each in (mean, since and f"now {age(now_ms - since)}") if each)


def _member_table(snapshot: Snapshot, now_ms: int, keeps_all: bool, width: int) -> Table:
    rows = []
    for member in _members(snapshot, keeps_all):
        load, owned = member.load, snapshot.owned_by(member.id)
        lags = [lag for each in owned if (lag := each.behind)]
        rows.append(
            (
                member.id,
                len(owned),
                member.max_owned,
                f"{_sum(lags, now_ms)[0]:,}" if lags else "",
                _batch(member, snapshot, now_ms),
                member.state.value,
                f"{age(now_ms - member.renewed_at_ms)} ago",
                load and f"{load.rate:,.0f}",
                member.host,
                sum(each.pin is not None and each.pin.to == member.id for each in snapshot.leases.values()) or "",
                member.strategy,
                f"{load.cpu:.0%}" if load and load.cpu is not None else "",
            )
        )
    leaving = any(each.state is MemberState.LEAVING for each in _members(snapshot, keeps_all))
    loads, texts = ("limit", "unread", "batch", "state"), ("events/s", "host", "pinned", "strategy", "host CPU")
    states = ("batch", "state") if leaving else ("state", "batch")
    return table(
        ("member", "partitions", *loads, "last seen", *texts),
        rows,
        right=("partitions", "limit", "unread", "last seen", "events/s", "pinned", "host CPU"),
        unknown=() if keeps_all else (*loads, *texts),
        dispensable=(*reversed(texts), "last seen", "limit", *states, "unread", "partitions"),
        width=width,
    )
