"""The address of a container, which selects the `blob` store, and its storage options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.credentials import SERVICE_PRINCIPAL
from spark_ehbalance.lease_table.identity import plain_name, split
from spark_ehbalance.settings.secrets import redacted

#: The address of a container. The address of a Delta table does not match, because it has a folder below the container.
_ADDRESS = re.compile(r"https://[a-z0-9-]+(\.z[0-9]{1,2})?\.blob\.[a-z0-9.-]+/[a-z0-9$-]{3,63}", re.IGNORECASE)

#: The address of a container in Azurite, which has the account in the path.
_EMULATOR = re.compile(r"https?://(?:127\.0\.0\.1|localhost)(?::\d+)?/[a-z0-9]+/[a-z0-9$-]{3,63}", re.IGNORECASE)

_FORM = (
    "https://ACCOUNT.blob.core.windows.net/CONTAINER, or http://127.0.0.1:PORT/devstoreaccount1/CONTAINER for Azurite"
)

#: delta-rs's option names without prefixes, including aliases → option.
OPTIONS = {
    "account_name": "account_name",
    "account_key": "account_key",
    "access_key": "account_key",
    "sas_token": "sas_token",
    "sas_key": "sas_token",
    "client_id": "client_id",
    "tenant_id": "tenant_id",
    "authority_id": "tenant_id",
    "client_secret": "client_secret",
    "credential": "credential",
}


def is_container(location: str) -> bool:
    """Whether `location` is the address of a container, not of a path below it."""
    address = location.rstrip("/")
    return bool(_ADDRESS.fullmatch(address) or _EMULATOR.fullmatch(address))


def parse_location(text: str) -> str:
    """The canonical form of the container's address. Raises `ValueError`, whose message states the allowed forms."""
    if not is_container(text):
        raise ValueError(_FORM)
    return text.rstrip("/").lower()  # accounts and containers are lower case


def account(location: str) -> str:
    """The storage account of `location`."""
    parts = urlsplit(location)
    folders = parts.path.strip("/").split("/")
    return folders[0] if len(folders) == 2 else str(parts.hostname).partition(".")[0]


def account_and_container(location: str) -> tuple[str, str]:
    """The address of the account's blob service, and the container's name."""
    service, _, container = location.rpartition("/")
    return service, container


def known_options(options: Mapping[str, str]) -> dict[str, str]:
    """`options` keyed by the option names in `OPTIONS`. Raises `OptionError` for an unknown option."""
    known = {}
    for name, value in options.items():
        if not is_known(name):
            raise OptionError(
                "EHB_OPTION_UNKNOWN",
                option=f"storageOptions.{redacted(name)}",
                where="a container of the Azure SDKs' checkpoint store",
                hint=f" (allowed: {', '.join(OPTIONS)})",
            )
        known[OPTIONS[plain_name(name)]] = value
    if "client_secret" in known:  # as in delta-rs, where a client secret needs no `credential`
        known.setdefault("credential", SERVICE_PRINCIPAL)
    return known


def is_known(name: str) -> bool:
    """Whether this store has the storage option `name`."""
    return plain_name(name) in OPTIONS


def check_storage(location: str, options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise `OptionError` for an unknown option or an invalid credential."""
    split(known_options(options))
