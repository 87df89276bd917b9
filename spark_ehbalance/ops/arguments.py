"""Arguments and options that several commands have."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Annotated

import typer

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.network import OPTIONS as NETWORK_OPTIONS
from spark_ehbalance.group.identity import Group
from spark_ehbalance.lease_table import contract as base
from spark_ehbalance.lease_table import opening
from spark_ehbalance.query.options import Options, checked_location, storage_options, stream_options
from spark_ehbalance.settings.secrets import REFERENCES, is_reference, shown

#: The environment variable with the connection string.
CONNECTION_STRING = "EHBALANCE_CONNECTION_STRING"

hub_panel = functools.partial(typer.Option, rich_help_panel="Event hub")
access_panel = functools.partial(typer.Option, rich_help_panel="Access")

LeaseTable = Annotated[str, typer.Argument(help="Path or address of the lease table.")]
Why = Annotated[str, typer.Option(help="The reason, for the history.")]
GroupName = Annotated[
    str | None, typer.Option(metavar="NAMESPACE/HUB/GROUP", help="Which group, in a container that has several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
BlobNamespace = Annotated[
    str | None, access_panel(metavar="HOST[:PORT]", help="Namespace in blob names, if it is not the hub's host.")
]


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The lease table's storage, and the Entra ID credential for storage and event hub."""

    storage_option: Annotated[
        list[str] | None,
        access_panel(metavar="NAME=VALUE", help="Storage option; a secret as env:VARIABLE or file:PATH. Repeatable."),
    ] = None
    credential: Annotated[str | None, access_panel(help="Entra ID credential: a name, or package.module:callable.")] = (
        None
    )
    client_id: Annotated[str | None, access_panel(help="Client id, as of a managed identity.")] = None
    tenant_id: Annotated[str | None, access_panel(help="Tenant id.")] = None

    def identity(self) -> Identity | None:
        """The credential, if one is given. Raises `OptionError`."""
        credential, client_id, tenant_id, _ = credentials.OPTIONS  # anybody can see command lines: no client secret
        given = {credential: self.credential, client_id: self.client_id, tenant_id: self.tenant_id}
        return Identity.from_options(given) if any(given.values()) else None

    def open(
        self,
        lease_table: str,
        *,
        needs_members: bool = False,
        identity: Identity | None = None,
        group: Group | None = None,
    ) -> base.LeaseTable:
        """Open a command's lease table, for `group` if it may hold several. The credential is
        `identity`, else the one given, unless the storage options name one.

        `needs_members`: the command needs members, orders or the history. Raises `OptionError`.
        """
        identity = identity or self.identity()
        location = checked_location(lease_table)
        if needs_members and not opening.capabilities(location).members:
            raise OptionError(
                f"{lease_table} is a container of the Azure SDKs' checkpoint store, which has no members, orders and "
                "history: allowed is a lease table in Delta"
            )
        options = storage_options(pairs(self.storage_option), {}, location, identity)
        return opening.open_store(location, options, group=group)


@dataclass(frozen=True, slots=True)
class HubOptions:
    """The event hub and consumer group."""

    event_hub_name: Annotated[str | None, hub_panel(help="Name of the event hub.")] = None
    fully_qualified_namespace: Annotated[str | None, hub_panel(help="Its namespace, for Entra ID.")] = None
    connection_string: Annotated[
        str | None,
        hub_panel(
            metavar="REF",
            help=f"Or env:NAME or file:PATH of its connection string. Default: env:{CONNECTION_STRING}",
        ),
    ] = None
    consumer_group: Annotated[str, hub_panel(help="The queries' consumer group.")] = "$Default"
    network: Annotated[
        list[str] | None,
        access_panel(
            metavar="NAME=VALUE", help=f"Query option about the network: {', '.join(NETWORK_OPTIONS)}. Repeatable."
        ),
    ] = None

    def options(self, lease_table: str | None, storage: StorageOptions, blob_namespace: str | None = None) -> Options:
        """The options of a query of the group. Raises `OptionError`."""
        names = {name.lower(): name for name in NETWORK_OPTIONS}
        network = {names.get(n.lower(), n): value for n, value in pairs(self.network, "--network").items()}
        if unknown := sorted(network.keys() - {*NETWORK_OPTIONS}):
            raise OptionError(f"--network has no {shown(unknown[0])}: allowed are {', '.join(NETWORK_OPTIONS)}")
        connection_string = self.connection_string
        if connection_string is not None and not is_reference(connection_string):
            raise OptionError(f"--connection-string is wrong: anybody can see command lines, write {REFERENCES}")
        if connection_string is None and self.fully_qualified_namespace is None and os.environ.get(CONNECTION_STRING):
            connection_string = f"env:{CONNECTION_STRING}"
        given = {
            "leaseTable": lease_table,
            "eventHubName": self.event_hub_name,
            "fullyQualifiedNamespace": self.fully_qualified_namespace,
            "connectionString": connection_string,
            "credential": storage.credential,
            "clientId": storage.client_id,
            "tenantId": storage.tenant_id,
            "consumerGroup": self.consumer_group,
            "blobNamespace": blob_namespace,
            **network,
            **{f"storageOptions.{name}": value for name, value in pairs(storage.storage_option).items()},
        }
        return stream_options({name: value for name, value in given.items() if value is not None})


def group_of(text: str) -> Group:
    """The group that `--group` names. Raises `OptionError`."""
    names = text.split("/")
    if len(names) != 3 or not all(names):
        raise OptionError(f"--group={shown(text)} is wrong: allowed is NAMESPACE/HUB/GROUP")
    return Group(*map(str.lower, names))  # the names of blobs may have any port


def pairs(texts: list[str] | None, option: str = "--storage-option") -> dict[str, str]:
    """The NAME=VALUE texts of `option` as a dict. Raises `OptionError`."""
    for text in texts or []:
        if "=" not in text:
            # The text may be a secret, so the error does not repeat it.
            raise OptionError(f"{option} is wrong: allowed is NAME=VALUE")
    return dict(text.split("=", 1) for text in texts or [])
