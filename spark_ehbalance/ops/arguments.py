"""Arguments and options shared by several commands."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import Annotated

import typer

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.network import OPTIONS as NETWORK_OPTIONS
from spark_ehbalance.group.identity import Group
from spark_ehbalance.lease_table import backends
from spark_ehbalance.lease_table.blob.locations import is_container
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.query.options import Options, checked_location, storage_options, stream_options
from spark_ehbalance.settings.secrets import HIDDEN, REFERENCES, is_reference, is_secret_name, redacted

#: The environment variable that contains the connection string.
CONNECTION_STRING = "EHBALANCE_CONNECTION_STRING"

#: The option for the lease table's storage.
STORAGE_OPTION = "--storage-option"

#: Why a secret must not be an argument.
PUBLIC = "command lines are public"

hub_panel = functools.partial(typer.Option, rich_help_panel="Event hub")
access_panel = functools.partial(typer.Option, rich_help_panel="Access")

LeaseTable = Annotated[str, typer.Argument(help="Path or address of the lease table.")]
Reason = Annotated[str, typer.Option("--why", help="The reason, recorded in the history.")]
GroupName = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE/HUB/GROUP", help="Consumer group, for a blob container with several."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BlobNamespace = Annotated[
    str | None, access_panel(metavar="HOST[:PORT]", help="Namespace in blob names, if it differs from the hub's host.")
]


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Storage options of the lease table, and the Entra ID credential for both the storage and the event hub."""

    storage_option: Annotated[
        list[str] | None,
        access_panel(
            metavar="NAME=VALUE", help="Storage option; pass a secret as env:VARIABLE or file:PATH. Repeatable."
        ),
    ] = None
    credential: Annotated[
        str | None, access_panel(help="Entra ID credential, by name or as package.module:callable.")
    ] = None
    client_id: Annotated[str | None, access_panel(help="Client id, e.g. of a managed identity.")] = None
    tenant_id: Annotated[str | None, access_panel(help="Tenant id.")] = None

    def identity(self) -> Identity | None:
        """The Entra ID credential; None if no option sets one. Raises `OptionError`."""
        credential, client_id, tenant_id, _ = credentials.OPTIONS  # no client secret: command lines are public
        options = {credential: self.credential, client_id: self.client_id, tenant_id: self.tenant_id}
        return Identity.from_options(options) if any(options.values()) else None

    def by_name(self) -> dict[str, str]:
        """The values of `--storage-option` by name, without the prefix that a query's options have. Raises
        `OptionError`."""
        given = pairs(self.storage_option)
        options = {re.sub(r"(?i)^storage(options|secrets)\.", "", name): value for name, value in given.items()}
        for name, value in options.items():
            if is_secret_name(name) and not is_reference(value):
                option = f"{STORAGE_OPTION} {redacted(name)}"
                raise OptionError("EHB_SECRET_EXPOSED", option=option, reason=PUBLIC, allowed=REFERENCES)
        return options

    def open(
        self,
        lease_table: str,
        *,
        needs_members: bool = False,
        identity: Identity | None = None,
        group: Group | None = None,
    ) -> LeaseStore:
        """Open the lease table. `group` selects a group if the table is a blob container with several.

        `identity` overrides the command's credential; storage options override both. `needs_members` means that the
        command needs members, operator commands or the history. Raises `OptionError`.
        """
        identity = identity or self.identity()
        location = checked_location(lease_table)
        if needs_members and not backends.capabilities(location).members:
            raise OptionError(
                "EHB_OPTION_INVALID",
                option="LEASE_TABLE",
                value=repr(lease_table),
                allowed="a lease table in Delta (a container has no members, operator commands or history)",
            )
        options = storage_options(self.by_name(), {}, location, identity)
        return backends.open_store(location, options, group=group)


@dataclass(frozen=True, slots=True)
class HubOptions:
    """The event hub and consumer group."""

    event_hub_name: Annotated[str | None, hub_panel(help="Name of the event hub.")] = None
    fully_qualified_namespace: Annotated[str | None, hub_panel(help="The event hub's namespace, for Entra ID.")] = None
    connection_string: Annotated[
        str | None,
        hub_panel(
            metavar="REF",
            help=f"Connection string, passed as env:NAME or file:PATH. Default: env:{CONNECTION_STRING}",
        ),
    ] = None
    consumer_group: Annotated[str, hub_panel(help="Consumer group of the queries.")] = "$Default"
    network: Annotated[
        list[str] | None,
        access_panel(metavar="NAME=VALUE", help=f"A query's network option: {', '.join(NETWORK_OPTIONS)}. Repeatable."),
    ] = None

    def options(self, lease_table: str | None, storage: StorageOptions, blob_namespace: str | None = None) -> Options:
        """Options of one of the group's queries. Raises `OptionError`."""
        names = {name.lower(): name for name in NETWORK_OPTIONS}
        network = {names.get(name.lower(), name): value for name, value in pairs(self.network, "--network").items()}
        if unknown := sorted(network.keys() - {*NETWORK_OPTIONS}):
            allowed = ", ".join(NETWORK_OPTIONS)
            raise OptionError("EHB_OPTION_INVALID", option="--network", value=redacted(unknown[0]), allowed=allowed)
        connection_string = self.connection_string
        if connection_string is not None and not is_reference(connection_string):
            raise OptionError("EHB_SECRET_EXPOSED", option="--connection-string", reason=PUBLIC, allowed=REFERENCES)
        if connection_string is None and self.fully_qualified_namespace is None and os.environ.get(CONNECTION_STRING):
            connection_string = f"env:{CONNECTION_STRING}"
        options = {
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
            **{f"storageOptions.{name}": value for name, value in storage.by_name().items()},
        }
        return stream_options({name: value for name, value in options.items() if value is not None})


def check_group_option(group: str | None, *locations: str) -> None:
    """Raise `OptionError` if `--group` is given for something other than a blob container."""
    if group is not None and not all(map(is_container, locations)):
        raise OptionError(
            "EHB_OPTION_NOT_APPLICABLE", option="--group", reason=f"{locations[0]} is not a blob container"
        )


def parse_group(text: str) -> Group:
    """Parse `--group=NAMESPACE/HUB/GROUP`. Raises `OptionError`."""
    names = text.split("/")
    if len(names) != 3 or not all(names):
        raise OptionError("EHB_OPTION_INVALID", option="--group", value=redacted(text), allowed="NAMESPACE/HUB/GROUP")
    return Group(*map(str.lower, names))  # not validated, because the namespace in blob names may include a port


def pairs(texts: list[str] | None, option: str = STORAGE_OPTION) -> dict[str, str]:
    """The NAME=VALUE pairs given for `option`, as a dict. Raises `OptionError`."""
    for text in texts or []:
        if "=" not in text:
            raise OptionError("EHB_OPTION_INVALID", option=option, value=HIDDEN, allowed="NAME=VALUE")
    return dict(text.split("=", 1) for text in texts or [])
