"""What the commands share: arguments, opening a table, orders, and how texts and times are shown."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.text import Text

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Transition, apply
from spark_ehbalance.source.options import Options, checked_location, storage_options, stream_options
from spark_ehbalance.stores import base, opening
from spark_ehbalance.stores.base import LeaseStore, commit_and_record
from spark_ehbalance.text import plain, plain_lines
from spark_ehbalance.values.secrets import REFERENCES, is_reference

#: The environment variable with the connection string.
_CONNECTION_STRING = "EHBALANCE_CONNECTION_STRING"

LeaseTable = Annotated[str, typer.Argument(help="Path or address of the lease table.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="An option of the table's storage; a secret one as NAME=env:VARIABLE or NAME=file:PATH. May be repeated.",
    ),
]
Why = Annotated[str, typer.Option(help="The reason, for the history.")]

EventHubName = Annotated[str | None, typer.Option(help="The event hub.")]
Namespace = Annotated[
    str | None, typer.Option("--fully-qualified-namespace", help="Its namespace, for Entra ID.", show_default=False)
]
ConnectionString = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME|file:PATH",
        help=f"Or where its connection string is. Default of both: env:{_CONNECTION_STRING}, if that is set.",
        show_default=False,
    ),
]
Credential = Annotated[str | None, typer.Option(help="Which Entra ID credential to use.")]
ConsumerGroup = Annotated[str, typer.Option(help="The consumer group that the queries share.")]


def group_options(
    lease_table: str,
    event_hub_name: str | None,
    namespace: str | None,
    connection_string: str | None,
    credential: str | None,
    consumer_group: str,
    storage_option: list[str] | None,
) -> Options:
    """The options of a query of the group. Raises `OptionError`."""
    if connection_string is not None and not is_reference(connection_string):
        raise OptionError(f"--connection-string is wrong: anybody can see command lines, write {REFERENCES}")
    if connection_string is None and namespace is None and os.environ.get(_CONNECTION_STRING):
        connection_string = f"env:{_CONNECTION_STRING}"
    given = {
        "leaseTable": lease_table,
        "eventHubName": event_hub_name,
        "fullyQualifiedNamespace": namespace,
        "connectionString": connection_string,
        "credential": credential,
        "consumerGroup": consumer_group,
        **{f"storageOptions.{name}": value for name, value in pairs(storage_option).items()},
    }
    return stream_options({name: value for name, value in given.items() if value is not None})


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


def open_store(lease_table: str, storage_option: list[str] | None) -> base.LeaseTable:
    """Open the lease table of a command. Raises `OptionError`."""
    location = checked_location(lease_table)
    return opening.open_store(location, storage_options(pairs(storage_option), {}, location))


def pairs(texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises `OptionError`."""
    for text in texts or []:
        if "=" not in text:
            # The text may be a secret, so the error does not repeat it.
            raise OptionError("--storage-option is wrong: allowed is NAME=VALUE")
    return dict(text.split("=", 1) for text in texts or [])


def say(text: str, *, err: bool = False) -> None:
    """Print `text`, which may contain names that others chose."""
    typer.echo(plain_lines(text), err=err)


def warn(text: str) -> None:
    """Print a warning, which may contain names that others chose."""
    say(f"Warning: {text}", err=True)


def cell(text: str | None) -> Text:
    """Text that others wrote, for a table: without markup, emoji codes and control characters."""
    return Text(plain(text or ""))


def now_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def iso(ms: int) -> str:
    """A time in milliseconds since 1970, as ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def age(ms: int) -> str:
    """A duration in milliseconds, for people."""
    seconds = ms / 1000
    return f"{seconds:.0f} s" if abs(seconds) < 120 else f"{seconds / 60:.0f} min"
