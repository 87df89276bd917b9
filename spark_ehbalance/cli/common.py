"""What the commands share: arguments, opening a table, orders, and how texts and times are shown."""

from __future__ import annotations

import getpass
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from spark_ehbalance.errors import ConflictError, DataLossError, EhBalanceError, OptionError
from spark_ehbalance.hub import credentials
from spark_ehbalance.hub.credentials import Identity
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from spark_ehbalance.hub.network import OPTIONS as NETWORK_OPTIONS
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import OTHER_HUB_HELP, Snapshot
from spark_ehbalance.leases.transitions import Outcome, Transition, apply
from spark_ehbalance.source.offsets import HubReference
from spark_ehbalance.source.options import Options, checked_location, storage_options, stream_options
from spark_ehbalance.stores import base, opening
from spark_ehbalance.stores.base import ATTEMPTS, LeaseStore, commit, commit_and_record, longest_wait, record
from spark_ehbalance.text import plain, plain_lines
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.secrets import REFERENCES, is_reference, shown

#: The environment variable with the connection string.
_CONNECTION_STRING = "EHBALANCE_CONNECTION_STRING"

#: Columns in which each table fits.
_FULL_WIDTH = 10_000

LeaseTable = Annotated[str, typer.Argument(help="Path or address of the lease table.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="An option of the table's storage; a secret one as NAME=env:VARIABLE or NAME=file:PATH. May be repeated.",
    ),
]
GroupName = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAMESPACE/HUB/GROUP",
        help="Which group, if a container of the Azure SDKs' checkpoint store has several.",
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
Credential = Annotated[
    str | None, typer.Option(help="Which Entra ID credential to use: a name, or package.module:callable.")
]
ClientId = Annotated[str | None, typer.Option(help="Its client id, as of a user-assigned managed identity.")]
TenantId = Annotated[str | None, typer.Option(help="Its tenant.")]
Way = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="NAME=VALUE",
        help=f"An option of the way to the hub, as a query has it: {', '.join(NETWORK_OPTIONS)}. May be repeated.",
    ),
]
BlobNamespace = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="The namespace in the names of the container's blobs, if it is not the hub's without its port.",
        show_default=False,
    ),
]
ConsumerGroup = Annotated[str, typer.Option(help="The consumer group that the queries share.")]


def group_options(
    lease_table: str | None,
    event_hub_name: str | None,
    namespace: str | None,
    connection_string: str | None,
    credential: str | None,
    consumer_group: str,
    storage_option: list[str] | None,
    network: list[str] | None = None,
    client_id: str | None = None,
    tenant_id: str | None = None,
    blob_namespace: str | None = None,
) -> Options:
    """The options of a query of the group. Raises `OptionError`."""
    names = {name.lower(): name for name in NETWORK_OPTIONS}
    way = {names.get(name.lower(), name): value for name, value in pairs(network, "--network").items()}
    if unknown := sorted(way.keys() - {*NETWORK_OPTIONS}):
        raise OptionError(f"--network has no {shown(unknown[0])}: allowed are {', '.join(NETWORK_OPTIONS)}")
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
        "clientId": client_id,
        "tenantId": tenant_id,
        "consumerGroup": consumer_group,
        "blobNamespace": blob_namespace,
        **way,
        **{f"storageOptions.{name}": value for name, value in pairs(storage_option).items()},
    }
    return stream_options({name: value for name, value in given.items() if value is not None})


def chosen(credential: str | None, client_id: str | None, tenant_id: str | None) -> Identity | None:
    """The credential of these arguments, if there are any. Raises `OptionError`."""
    given = dict(zip(credentials.OPTIONS, (credential, client_id, tenant_id), strict=True))
    return Identity.from_options(given) if any(given.values()) else None


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


def check_positions(next: Mapping[str, int], states: Mapping[str, PartitionState], source: str) -> None:
    """Raise `OptionError` if the hub cannot have the sequence number to read `next` of each partition, which are from
    `source`."""
    for partition, number in next.items():
        state = states.get(partition)
        if state is None or number > state.end:
            ends = f"ends before {state.end}" if state else f"has partitions {', '.join(states)}"
            raise OptionError(
                f"{source} is of another event hub, or the hub was recreated: it has read up to {number} of partition "
                f"{partition}, and the hub {ends}"
            )


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


def write_together(store: LeaseStore, group: Group, decide: Callable[[Snapshot], Sequence[Transition]]) -> Outcome:
    """Write what `decide` answers for the newest state, all in one commit, and record it in the history. Makes the
    store of `group`, holding just that, if there is none.

    Raises what `decide` raises; then nothing has changed. Raises `EhBalanceError` if others keep changing the state.
    """
    if not store.exists():
        made = apply(Snapshot(group), decide(Snapshot(group)))
        store.create(group, made.after)
        table, own = store.read().table, made.after.table
        if table is not None and own is not None and table.id == own.id:
            record(store, made, warn)
            return made
    store.create(group)
    for attempt in range(1, ATTEMPTS + 1):
        found, began = store.read(), time.monotonic()
        try:
            outcome = commit(store, found, decide(found), attempts=1)
        except ConflictError:
            time.sleep(random.uniform(0, longest_wait(attempt, time.monotonic() - began)))
            continue
        record(store, outcome, warn)
        return outcome
    raise EhBalanceError("others keep changing the table: try again")


def open_store(
    lease_table: str,
    storage_option: list[str] | None,
    group: str | None = None,
    *,
    identity: Identity | None = None,
    lacks: str | None = None,
) -> base.LeaseTable:
    """Open the lease table of a command, for `group` if it may hold several, with `identity` if the storage options
    name no credential.

    `lacks` is a clause about why a command cannot do its work where the group is kept as the Azure SDKs keep it. Raises
    `OptionError`.
    """
    location = checked_location(lease_table)
    if lacks is not None and not opening.offers(location).handover:
        raise OptionError(f"{lease_table} is a container of the Azure SDKs' checkpoint store, {lacks}")
    options = storage_options(pairs(storage_option), {}, location, identity)
    return opening.open_store(location, options, group=None if group is None else _group(group))


def _group(text: str) -> Group:
    names = text.split("/")
    if len(names) != 3 or not all(names):
        raise OptionError(f"--group={shown(text)} is wrong: allowed is NAMESPACE/HUB/GROUP")
    return Group.of(*names)


def pairs(texts: list[str] | None, option: str = "--storage-option") -> dict[str, str]:
    """The NAME=VALUE texts of `option` as a dict. Raises `OptionError`."""
    for text in texts or []:
        if "=" not in text:
            # The text may be a secret, so the error does not repeat it.
            raise OptionError(f"{option} is wrong: allowed is NAME=VALUE")
    return dict(text.split("=", 1) for text in texts or [])


def say(text: str, *, err: bool = False) -> None:
    """Print `text`, which may contain names that others chose."""
    typer.echo(plain_lines(text), err=err)


def warn(text: str) -> None:
    """Print a warning, which may contain names that others chose."""
    say(f"Warning: {text}", err=True)


def console() -> Console:
    """Prints tables: to a terminal in its width (or `COLUMNS`), elsewhere in full, as nobody can widen a file."""
    cut = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if cut else _FULL_WIDTH)


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
