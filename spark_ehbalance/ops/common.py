"""What the commands share: asking the hub, orders, and how texts and times are shown."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Collection, Iterable, Sequence

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import DataLossError, EhBalanceError, StoreFormatError
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.group.changes import Transition, apply
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import OTHER_HUB_HELP, Snapshot
from spark_ehbalance.lease_table.contract import LeaseStore, commit_and_record
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.options import Options
from spark_ehbalance.text import plain, plain_lines

#: Columns in which each table fits.
_FULL_WIDTH = 10_000


def hub_states(
    options: Options, partitions: Collection[str] | None = None
) -> tuple[HubReference, dict[str, PartitionState]]:
    """Which hub it is, and the state of each of `partitions`, by default of all. Raises `HubUnavailableError`."""
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        found = metadata.partition_ids()
        states = metadata.partition_states(found if partitions is None else partitions)
        return HubReference.of(options.group, metadata.created_ms), states


def check_hub_of(found: Snapshot, hub: HubReference, lease_table: str) -> None:
    """Raise `DataLossError` if the lease table has the positions of another hub."""
    if other := found.described_other_hub(hub.created_ms):
        raise DataLossError(f"lease table {lease_table}: {other}. Nothing was written: {OTHER_HUB_HELP}")


def check_group(found: Snapshot, group: Group, lease_table: str) -> None:
    """Raise `StoreFormatError` if the lease table is another group's."""
    if found.group != group:
        raise StoreFormatError(f"the lease table {lease_table} belongs to {found.group}, not to {group}")


def operator() -> Author:
    """The author of the command's orders."""
    return Author(f"operator:{getpass.getuser()}@{socket.gethostname()}", "")


def order(store: LeaseStore, orders: Sequence[Transition]) -> Snapshot:
    """Commit an operator's orders and record them in the history. Returns the new state.

    Raises `EhBalanceError`, which names what is allowed, if an order is refused. Then none was carried out, unless
    another commit came in between that made only some of them invalid.
    """
    before = store.read()
    outcome = apply(before, orders)
    if not outcome.refused:
        outcome = commit_and_record(store, before, orders, warn)
    if outcome.refused:
        raise EhBalanceError(outcome.refused[0].reason)
    return outcome.after


def say(text: str, *, err: bool = False) -> None:
    """Print `text`, with control characters escaped: it may contain names that others chose."""
    typer.echo(plain_lines(text), err=err)


def warn(text: str) -> None:
    """Print a warning, as `say` does."""
    say(f"Warning: {text}", err=True)


def console() -> Console:
    """Prints tables: to a terminal in its width (or `COLUMNS`), elsewhere in full, as nobody can widen a file."""
    cut = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if cut else _FULL_WIDTH)


def cell(value: object) -> Text:
    """Text that others may have written, for a table: without markup, emoji codes and control characters."""
    return Text("" if value is None else plain(str(value)))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    right: Collection[str] = (),
    unknown: Collection[str] = (),
    dispensable: Sequence[str] = (),
    width: int = _FULL_WIDTH,
) -> Table:
    """A table of values that others may have written. The columns in `right` are aligned there, those in `unknown` have
    "-" in every row. Of the `dispensable` ones the first are left out until the rest fits into `width`, beginning with
    those without a value; what is still too wide goes on in the next line, and nothing is cut."""
    cells = [
        [cell("-" if name in unknown else value) for name, value in zip(columns, row, strict=True)] for row in rows
    ]
    texts = {name: [each.plain for each in column] for name, *column in zip(columns, *cells, strict=True)}
    widths = {name: max(cell_len(each) for each in (name, *column)) for name, column in texts.items()}
    shown, rest = [*columns], sorted(dispensable, key=lambda name: not {*texts[name]} <= {"", "-"})
    while rest and 1 + sum(widths[name] + 3 for name in shown) > width:
        shown.remove(rest.pop(0))
    made = Table(title=title and cell(title), title_justify="left")
    for column in shown:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in cells:
        made.add_row(*(each for name, each in zip(columns, row, strict=True) if name in shown))
    return made


def now_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
