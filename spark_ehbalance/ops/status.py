"""`ehbalance status`: shows the state of a group and its problems, once or continuously."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from typing import Annotated, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.defaults import LEASE_DURATION
from spark_ehbalance.group.group_view import FINDINGS, GroupView, Severity
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.ops.arguments import AsJson, GroupName, LeaseTable, StorageOptions, check_group_option, parse_group
from spark_ehbalance.ops.common import change_text, console, table, wrapped
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.text import age

#: Seconds between two refreshes of `status --watch`.
_WATCH_INTERVAL = 1.0

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

    A checkpoint container of the Azure SDKs contains less information. `--json` and the dashboard show all details.
    """
    if watch and (as_json or partition is not None):
        options = f"--watch and {'--json' if as_json else '--partition'}"
        raise OptionError("EHB_OPTIONS_CONFLICT", options=options, reason="--watch shows the whole group as text")
    if as_json and partition is not None:
        reason = "--json prints the whole group"
        raise OptionError("EHB_OPTIONS_CONFLICT", options="--json and --partition", reason=reason)
    check_group_option(group, lease_table)
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
    out = console()
    with Live(console=out, auto_refresh=False) if out.is_terminal else contextlib.nullcontext() as live:
        while True:
            view, width = viewer.latest(), out.width
            findings = [_finding_text(finding.severity, finding.text, width) for finding in view.findings]
            content = Group(*findings, status_tables(view, width))
            if live is None:  # a pipe or a file
                out.print(content)
            else:
                live.update(content, refresh=True)
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


def status_tables(view: GroupView, width: int = 10_000, only: str | None = None) -> Group:
    """The non-empty tables of members and partitions for a terminal of this width; with `only`, only that partition."""
    leases = [lease for lease in view.snapshot.leases.values() if only in (None, lease.partition)]
    parts: list[Table | Text] = [wrapped(_title(view), width)]
    if not (view.last_heartbeat_ms or not view.keeps_members):
        parts.append(wrapped("No query has joined this group yet.", width))
    if only is None and (total := _total(view)):
        parts.append(wrapped(total, width))
    if only is None and view.members:
        parts.append(_member_table(view))
    if leases:
        parts.append(_partition_table(view, leases))
    return Group(*parts)


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


def _partition_table(view: GroupView, leases: Iterable[Lease]) -> Table:
    columns = ("partition", "owner", "unread", "waiting", "measured", "next", "next owner", "pinned to", "renewed")
    return table(columns, (_partition_row(view, lease) for lease in leases), right=("partition", *columns[2:6]))


def _partition_row(view: GroupView, lease: Lease) -> tuple[object, ...]:
    pin, lag, now = lease.pin, lease.current_lag, view.now_ms
    waited = lag.seconds(now) if lag else None
    return (
        lease.partition,
        lease.owner or "nobody",
        f"{lag.events:,}" if lag else "",
        age(int(1000 * waited)) if waited else "",
        f"{age(now - lag.at_ms)} ago" if lag and now - lag.at_ms > _fresh_ms(view) else "",
        lease.checkpoint.next if lease.checkpoint else "",
        lease.handover.to if lease.handover else "",
        f"{pin.to}{' (transfer)' if pin.transfer else ''}" if pin else "",
        f"{age(now - lease.renewed_at_ms)} ago" if lease.owner is not None else "",
    )


def _batch(view: GroupView, member: Member) -> str:
    """The average duration of a batch, and how long the current batch has been running."""
    mean, since = member.load and f"{member.load.batch_seconds:.1f} s", view.snapshot.in_batch_since_ms(member)
    return ", ".join(text for text in (mean, since and f"now {age(view.now_ms - since)}") if text)


def _member_table(view: GroupView) -> Table:
    columns = ("member", "partitions", "limit", "unread", "batch", "state", "last seen", "host")
    return table(columns, (_member_row(view, member) for member in view.members), right=columns[1:4])


def _member_row(view: GroupView, member: Member) -> tuple[object, ...]:
    owned = view.snapshot.owned_by(member.id)
    lags = [lag for lease in owned if (lag := lease.current_lag)]
    return (
        member.id,
        len(owned),
        "" if member.max_owned is None else member.max_owned,
        f"{view.backlog(lags)[0]:,}" if lags else "",
        _batch(view, member),
        member.state.value if view.keeps_members else "",
        f"{age(view.silence_ms(member.id))} ago",
        member.host,
    )
