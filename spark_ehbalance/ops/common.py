"""Functions that several commands use: hub requests, commits and output."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ehbalance.clock import now_ms
from spark_ehbalance.errors import EhBalanceError, StoreFormatError
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.group.changes import Transition, apply
from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import LeaseStore, commit_and_record
from spark_ehbalance.query.consistency import hub_mismatch
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.options import Options
from spark_ehbalance.text import age, format_time, plain, plain_lines

#: Wide enough for any table.
_FULL_WIDTH = 10_000


def hub_states(
    options: Options, partitions: Collection[str] | None = None
) -> tuple[HubReference, dict[str, PartitionState]]:
    """The event hub, and the states of `partitions`, by default of all partitions. Raises `HubUnavailableError`."""
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        ids = metadata.partition_ids()
        states = metadata.partition_states(ids if partitions is None else partitions)
        return HubReference.from_group(options.group, metadata.created_ms), states


def check_hub(snapshot: Snapshot, hub: HubReference) -> None:
    """Raise `DataLossError` if the lease table contains positions of another hub."""
    if error := hub_mismatch(snapshot, hub):
        raise error


def check_group(snapshot: Snapshot, group: Group, lease_table: str) -> None:
    """Raise `StoreFormatError` if the lease table belongs to another group."""
    if snapshot.group != group:
        problem = f"it belongs to {snapshot.group}, not to {group}"
        raise StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=lease_table, problem=problem)


def operator() -> Author:
    """The author of commands issued on the command line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user id may have no name
        user = str(os.getuid())
    return Author(f"operator:{user}@{socket.gethostname()}", "")


def commit_command(
    store: LeaseStore, transitions: Sequence[Transition], members: Collection[str | None] = ()
) -> Snapshot:
    """Commit an operator's command, given as `transitions` that concern `members`, and record it in the
    history. Returns the new state.

    Raises `EhBalanceError` if a transition is rejected. In that case, nothing was changed, unless a concurrent commit
    made only some of the transitions invalid.
    """
    before = store.read()
    outcome = apply(before, transitions)
    if not outcome.rejected:
        outcome = commit_and_record(store, before, transitions, warn)
    if outcome.rejected:
        raise EhBalanceError("EHB_COMMAND_REJECTED", reason=outcome.rejected[0].reason)
    view = GroupView(outcome.after, now_ms())
    for member in members:
        if member is not None and not view.is_live(member):
            silence = age(view.silence_ms(member))
            warn(
                f"{member} last renewed {silence} ago and appears dead: it cannot carry out the command until it "
                "returns."
            )
    return outcome.after


def echo(text: str, *, err: bool = False) -> None:
    """Print `text` with control characters escaped: it may be untrusted."""
    typer.echo(plain_lines(text), err=err)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    echo(f"Warning: {text}", err=True)


def console() -> Console:
    """A console as wide as the terminal or `COLUMNS`. Its width is unlimited if the output is a file."""
    is_limited = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
    return Console(width=None if is_limited else _FULL_WIDTH)


def cell(value: object) -> Text:
    """A table cell with untrusted text: markup, emoji codes and control characters have no effect."""
    return Text("" if value is None else plain(str(value)))


def wrapped(text: str, width: int) -> Text:
    """`text` made plain and wrapped at `width` columns, with hanging indents."""
    return Text("\n".join(textwrap.wrap(plain(text), width, subsequent_indent="  ", break_on_hyphens=False)))


def change_text(change: OwnershipChange, partition: str = "") -> str:
    """A change from the history, on one line."""
    owners = f"{change.owner_before or 'nobody'} → {change.owner or 'nobody'}"
    reason = f": {change.why}" if change.why else ""
    return f"{format_time(change.at_ms)}  {partition}{change.event}  {owners}  by {change.by}{reason}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()) -> Table:
    """A table of untrusted values. Columns in `right` are right-aligned, empty columns are omitted, and cells wrap."""
    result = Table()
    shown = [(name, cells) for name, *cells in zip(columns, *rows, strict=True) if any(cell != "" for cell in cells)]
    for name, _ in shown:
        result.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in zip(*(cells for _, cells in shown), strict=True):
        result.add_row(*map(cell, row))
    return result
