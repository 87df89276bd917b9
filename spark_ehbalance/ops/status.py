"""`ehbalance status`: shows the state of a group and its problems, once or continuously."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.defaults import LEASE_DURATION
from spark_ehbalance.group.group_view import FINDINGS, GroupView, Severity
from spark_ehbalance.group.model import Lease, Member, MemberState
from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.ops.arguments import AsJson, GroupName, LeaseTable, StorageOptions, parse_group
from spark_ehbalance.ops.common import cell, change_text, console, table, wrapped
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.text import age

#: Seconds between two refreshes of `status --watch`.
_WATCH_INTERVAL = 1.0

#: Number of lines that `status --watch` needs in addition to table rows: the frames of two tables, and three lines of
#: text.
_OTHER_LINES = 13

#: Maximum number of a partition's latest ownership changes to show.
_SHOWN_CHANGES = 5

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def status(
    lease_table: LeaseTable,
    storage: StorageOptions,
    partition: Annotated[
        str | None, typer.Option(help="Show only this partition, with its findings and last moves.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: AsJson = False,
    group: GroupName = None,
) -> None:
    """Show a group's partitions, lag, members and findings.

    A checkpoint container of the Azure SDKs contains less information; missing values are shown as "-".
    """
    if watch and (as_json or partition is not None):
        options = f"--watch and {'--json' if as_json else '--partition'}"
        raise OptionError("EHB_OPTIONS_CONFLICT", options=options, reason="--watch shows the whole group as text")
    with storage.open(lease_table, group=None if group is None else parse_group(group)) as store:
        viewer = Viewer(store)
        if watch:
            _watch(viewer)
        view = viewer.view()
        changes = store.history() if partition is not None else []
    if partition is not None and partition not in view.snapshot.leases:
        allowed = ", ".join(view.snapshot.leases)
        raise OptionError("EHB_OPTION_INVALID", option="--partition", value=redacted(partition), allowed=allowed)
    if as_json:
        typer.echo(json.dumps(view.to_json(), indent=2))
    else:
        out = console()
        out.print(status_tables(view, out.width, only=partition))
        _print_findings(out, view, partition)
        for change in [change for change in changes if change.partition == partition][-_SHOWN_CHANGES:]:
            out.print(wrapped(change_text(change), out.width), soft_wrap=True)


def _watch(viewer: Viewer) -> NoReturn:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            view, size = viewer.latest(), live.console.size
            findings = [_finding_text(finding.severity, finding.text, size.width) for finding in view.findings]
            height = size.height - 1 - sum(len(text.plain.splitlines()) for text in findings)
            live.update(Group(status_tables(view, size.width, height), *findings), refresh=True)
            time.sleep(_WATCH_INTERVAL)


# --- text ------------------------------------------------------------------------------------------------------------


def _print_findings(out: Console, view: GroupView, partition: str | None = None) -> None:
    findings = view.findings if partition is None else view.partition_findings(partition)
    for finding in findings:
        out.print(_finding_text(finding.severity, finding.text, out.width), soft_wrap=True)
        out.print(wrapped(f"→ {FINDINGS[finding.code].remedy}", out.width), soft_wrap=True)
    if not findings:
        out.print("No findings.")


def _finding_text(severity: Severity, text: str, width: int) -> Text:
    result = wrapped(f"{severity.name}: {text}", width)
    result.stylize(_STYLES[severity], 0, len(severity.name))
    return result


# --- tables ----------------------------------------------------------------------------------------------------------


def status_tables(view: GroupView, width: int = 10_000, height: int | None = None, only: str | None = None) -> Group:
    """The non-empty tables of partitions and members for a terminal of this width and height. If the height is too
    small, shows only the partitions with the longest lag. With `only`, shows only that partition and no members."""
    members = _member_table(view, width)
    leases, hidden = [lease for lease in view.snapshot.leases.values() if only in (None, lease.partition)], 0
    if height is not None:
        capacity = max(1, height - members.row_count - _OTHER_LINES)
        if hidden := max(0, len(leases) - capacity):
            furthest = sorted(leases, key=lambda lease: _urgency(lease, view), reverse=True)[:capacity]
            leases = [lease for lease in leases if lease in furthest]
    total = _total(view) if only is None else ""
    joined = view.last_heartbeat_ms or not view.keeps_members
    return Group(
        wrapped(_title(view), width),
        *([] if joined else [wrapped("No query has joined this group yet.", width)]),
        *([_partition_table(view, leases, width)] if leases else []),
        *([cell(f"and {hidden} partitions with a shorter lag")] if hidden else []),
        *([members] if only is None and view.members else []),
        *([wrapped(total, width)] if total else []),
    )


def _urgency(lease: Lease, view: GroupView) -> tuple[float, int, bool]:
    if (lag := lease.current_lag) is None:
        return 0.0, 0, lease.owner is None
    waited = lag.seconds(view.now_ms)
    return math.inf if waited is None else waited, lag.events, lease.owner is None


def _title(view: GroupView) -> str:
    count, noun = len(view.members), "member" if view.keeps_members else "owner"
    title = f"{view.snapshot.group}, {count} {noun}{'s' if count != 1 else ''}"
    if (ms := view.snapshot.lease_duration_ms) is not None:
        title += f", lease duration {ms / 1000:g} s"
    return title


def _total(view: GroupView) -> str:
    """The group's lag as one line."""
    lags, count = view.lags.values(), len(view.snapshot.leases)
    if not lags:
        return ""
    events, seconds = view.backlog(lags)
    text = f"{events:,} unread events"
    if events and seconds:
        unknown = any(lag.seconds(view.now_ms) is None for lag in lags)
        text += f", the oldest {'at least ' if unknown else ''}{age(int(1000 * seconds))} old"
    if len(lags) < count:
        text += f", in {len(lags)} of {count} partitions"
    old_ms = max(view.now_ms - lag.at_ms for lag in lags)
    return text if old_ms <= _fresh_ms(view) else f"{text}, measured up to {age(old_ms)} ago"


def _fresh_ms(view: GroupView) -> int:
    """The age in milliseconds up to which a measurement is shown without its age."""
    return view.snapshot.lease_duration_ms or int(1000 * LEASE_DURATION)


def _partition_table(view: GroupView, leases: Iterable[Lease], width: int) -> Table:
    lags, orders = ("unread", "waiting", "measured", "next", "end"), ("next owner", "pinned to")
    return table(
        ("partition", "owner", *lags, *orders, "renewed", "owned for", "epoch"),
        [tuple(_partition_row(view, lease)) for lease in leases],
        right=("partition", "epoch", *lags),
        unknown=() if view.keeps_members else ("unread", "waiting", "measured", "end", *orders, "owned for", "epoch"),
        dispensable=(
            "epoch",
            "owned for",
            "renewed",
            "end",
            "pinned to",
            "next",
            "measured",
            "next owner",
            *lags[1::-1],
        ),
        width=width,
    )


def _partition_row(view: GroupView, lease: Lease) -> Iterator[object]:
    owned, pin, lag, now = lease.owner is not None, lease.pin, lease.current_lag, view.now_ms
    waited = lag.seconds(now) if lag else None
    yield from (lease.partition, lease.owner or "nobody", lag and f"{lag.events:,}")
    yield age(int(1000 * waited)) if waited else ""
    yield f"{age(now - lag.at_ms)} ago" if lag and now - lag.at_ms > _fresh_ms(view) else ""
    yield from (lease.checkpoint and lease.checkpoint.next, lag and lag.end, lease.handover and lease.handover.to)
    yield pin and f"{pin.to}{' (transfer)' if pin.transfer else ''}"
    yield f"{age(now - lease.renewed_at_ms)} ago" if owned else ""
    yield age(now - lease.owned_since_ms) if owned else ""
    yield lease.epoch


def _batch(view: GroupView, member: Member) -> str:
    """The average duration of a batch, and how long the current batch has been running."""
    mean, since = member.load and f"{member.load.batch_seconds:.1f} s", view.snapshot.in_batch_since_ms(member)
    return ", ".join(text for text in (mean, since and f"now {age(view.now_ms - since)}") if text)


def _member_table(view: GroupView, width: int) -> Table:
    leaving = any(member.state is MemberState.LEAVING for member in view.members)
    loads, texts = ("limit", "unread", "batch", "state"), ("events/s", "host", "pinned", "strategy", "host CPU")
    states = ("batch", "state") if leaving else ("state", "batch")
    return table(
        ("member", "partitions", *loads, "last seen", *texts),
        [tuple(_member_row(view, member)) for member in view.members],
        right=("partitions", "limit", "unread", "last seen", "events/s", "pinned", "host CPU"),
        unknown=() if view.keeps_members else (*loads, *texts),
        dispensable=(*reversed(texts), "last seen", "limit", *states, "unread", "partitions"),
        width=width,
    )


def _member_row(view: GroupView, member: Member) -> Iterator[object]:
    load, owned = member.load, view.snapshot.owned_by(member.id)
    lags = [lag for lease in owned if (lag := lease.current_lag)]
    yield from (member.id, len(owned), member.max_owned, f"{view.backlog(lags)[0]:,}" if lags else "")
    yield from (_batch(view, member), member.state.value, f"{age(view.silence_ms(member.id))} ago")
    yield from (load and f"{load.rate:,.0f}", member.host)
    yield sum(lease.pin is not None and lease.pin.to == member.id for lease in view.snapshot.leases.values()) or ""
    yield from (member.strategy, f"{load.cpu:.0%}" if load and load.cpu is not None else "")
