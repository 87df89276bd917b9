"""Entra ID credentials for a lease table's storage in Azure. The storage options are `credential`, `client_id`,
`tenant_id` and `client_secret`, with the same values as the hub's options; the default is the hub's own credential.

No option contains a token. obstore requests a token when it needs one; delta-rs cannot, so it receives the current
token whenever it opens a table.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.eventhub.credentials import STORAGE_OPTIONS, Identity
from spark_ehbalance.eventhub.tokens import TokenUnavailableError
from spark_ehbalance.settings.locations import scheme

_SCOPE = "https://storage.azure.com/.default"

#: Minimum time in seconds between two new tokens for storage that refuses them.
_PAUSE = 10.0

#: Schemes of Azure's storage.
_AZURE = ("abfs", "abfss", "adl", "az", "azure", "https", "http")

#: Names, without delta-rs's prefixes, of the storage options that contain or locate a credential.
_KEYS = re.compile(
    r"(account|access|master|sas)_key|sas_token|(bearer_)?token|connection_string|client_secret|federated_token_file"
    r"|use_azure_cli|use_emulator|skip_signature|(msi|identity)_endpoint|(msi_)?(object|resource)_id|fabric_\w+"
)

#: Environment variables that are credentials for storage only. azure-identity reads other variables, such as
#: `AZURE_CLIENT_SECRET`.
_VARIABLES = re.compile(r"AZURE_STORAGE_((ACCOUNT_|ACCESS_|MASTER_|SAS_)?KEY|(SAS_)?TOKEN|CONNECTION_STRING)")


def is_azure(location: str) -> bool:
    """Whether the storage at `location` is in Azure."""
    return scheme(location) in _AZURE


def with_identity(
    location: str, options: Mapping[str, str], identity: Identity | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """The storage `options` for `location`, with the hub's `identity` added if neither the options nor the
    `environment` contain a credential."""
    own = {plain_name(name) for name in options}
    named = any(_KEYS.fullmatch(name) or name in ("credential", "client_id") for name in own)
    if identity is None or named or not is_azure(location) or any(map(_VARIABLES.fullmatch, environment)):
        return dict(options)
    return identity.options(STORAGE_OPTIONS) | dict(options)


def split(options: Mapping[str, str]) -> tuple[Identity | None, dict[str, str]]:
    """The identity in `options` (None if they have no `credential`), and the other options.

    Raises `OptionError` if the identity is invalid, or if the options contain another credential as well.
    """
    plain = {plain_name(name): (name, value) for name, value in options.items()}
    if "credential" not in plain:
        return None, dict(options)
    for name, (given, _) in plain.items():
        if name not in STORAGE_OPTIONS and _KEYS.fullmatch(name):
            both = f"storageOptions.credential and storageOptions.{given}"
            raise OptionError("EHB_OPTIONS_CONFLICT", options=both, reason="each is a credential")
    named = {f"storageOptions.{name}": plain[name][1] for name in STORAGE_OPTIONS if name in plain}
    credential, client, tenant, secret = (f"storageOptions.{name}" for name in STORAGE_OPTIONS)
    names = (credential, client, tenant, secret)
    rest = {given: value for name, (given, value) in plain.items() if name not in STORAGE_OPTIONS}
    return Identity.from_options(named, names), rest


def check_identity(location: str, options: Mapping[str, str]) -> None:
    """Raise `OptionError` if the options contain an invalid credential, or a credential that the storage does not
    accept."""
    identity, _ = split(options)
    if identity is not None and not is_azure(location):
        reason = f"the storage at {location} is not in Azure"
        raise OptionError("EHB_OPTION_NOT_APPLICABLE", option="storageOptions.credential", reason=reason)


class StorageTokens:
    """An identity's tokens for storage. obstore calls this object, and keeps the token until it expires."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._renewed = -math.inf

    def __call__(self) -> dict[str, Any]:
        token, expires_on = self._token()
        return {"token": token, "expires_at": datetime.fromtimestamp(expires_on, timezone.utc)}

    def option(self) -> tuple[dict[str, str], float]:
        """The current token as an option of delta-rs, and its expiry in seconds since 1970. Raises
        `StoreUnavailableError`."""
        token, expires_on = self._token()
        return {"bearer_token": token}, expires_on

    def renew(self) -> bool:
        """Discard a refused token, so that the next request gets a new one. Returns whether the token was discarded,
        which happens at most once per `_PAUSE`, in case the storage refuses all tokens."""
        now = time.monotonic()
        if now - self._renewed < _PAUSE:
            return False
        self._renewed = now
        self._identity.tokens().renew()
        return True

    def _token(self) -> tuple[str, int]:
        try:
            access = self._identity.tokens().get_token(_SCOPE)
        except TokenUnavailableError as error:
            what = "The lease table's storage"
            raise StoreUnavailableError(
                "EHB_LEASE_TABLE_UNAVAILABLE", what=what, action="used", reason=error.reason
            ) from None
        return access.token, access.expires_on


def for_delta_rs(options: Mapping[str, str]) -> dict[str, str]:
    """`options` for delta-rs, with the current token. Raises `OptionError` or `StoreUnavailableError`."""
    identity, rest = split(options)
    return rest if identity is None else rest | StorageTokens(identity).option()[0]


def plain_name(name: str) -> str:
    """The name of an Azure storage option without delta-rs's prefixes."""
    return re.sub(r"^azure_(storage_)?", "", name.lower())
