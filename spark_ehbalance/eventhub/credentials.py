"""Entra ID credentials: an azure-identity class, selected by name, or the result of a user's callable.

The driver sends only the name, the ids and a client secret to the planner and the workers; each process creates the
credential and fetches its own tokens.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from azure.core.credentials import TokenCredential

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.eventhub.tokens import TokenCache, error_text
from spark_ehbalance.settings.option_texts import invalid_option
from spark_ehbalance.settings.secrets import redacted, resolve_secret

#: The credential options.
OPTIONS = ("credential", "clientId", "tenantId", "clientSecret")

#: The same options, as named in `storageOptions`.
STORAGE_OPTIONS = ("credential", "client_id", "tenant_id", "client_secret")

_Names = tuple[str, str, str, str]

#: The value of `credential` that requires a client secret. It is the default if a client secret is set.
SERVICE_PRINCIPAL = "servicePrincipal"


class _Kind(NamedTuple):
    """A class of azure-identity, and the names of its arguments for client id, tenant id and client secret."""

    name: str
    client_id: tuple[str, ...] = ()
    tenant_id: tuple[str, ...] = ()
    client_secret: tuple[str, ...] = ()


#: Values of the option `credential`, with their classes. The classes read other settings from the environment.
CREDENTIALS = {
    "default": _Kind(
        "DefaultAzureCredential",
        ("managed_identity_client_id", "workload_identity_client_id"),
        ("workload_identity_tenant_id",),
    ),
    "environment": _Kind("EnvironmentCredential"),
    "managedIdentity": _Kind("ManagedIdentityCredential", ("client_id",)),
    "workloadIdentity": _Kind("WorkloadIdentityCredential", ("client_id",), ("tenant_id",)),
    "azureCli": _Kind("AzureCliCredential", (), ("tenant_id",)),
    SERVICE_PRINCIPAL: _Kind("ClientSecretCredential", ("client_id",), ("tenant_id",), ("client_secret",)),
}

_CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Identity:
    """How a process gets Entra ID tokens: `credential` is the name of a credential, or `package.module:callable`."""

    credential: str = "default"
    client_id: str | None = None
    tenant_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str | None], names: _Names = OPTIONS) -> Identity:
        """Parse the options with these `names`. If the credential is a callable, calls it once to check what it
        returns.

        Raises `OptionError`.
        """
        credential, client, tenant, secret = (options.get(name) for name in names)
        credential = (credential or ("default" if secret is None else SERVICE_PRINCIPAL)).strip()
        for name, id in zip(names[1:3], (client, tenant), strict=True):
            if id is not None and not re.fullmatch(r"[\w.-]{1,200}", id, re.ASCII):
                raise invalid_option(name, id, "letters, digits and any of _ - .")
        if secret is not None and credential.lower() != SERVICE_PRINCIPAL.lower():
            raise OptionError(
                "EHB_OPTIONS_CONFLICT",
                options=f"{names[3]} and {names[0]}={redacted(credential)}",
                reason=f"a client secret requires {names[0]}={SERVICE_PRINCIPAL}",
            )
        identity = cls(credential, client, tenant)
        if identity.is_callable:
            identity._check_callable(names)
            return identity
        known = {name.lower(): name for name in CREDENTIALS}.get(credential.lower())
        if known is None:
            raise invalid_option(
                names[0],
                credential,
                f"one of {', '.join(CREDENTIALS)}, or package.module:callable, which returns a TokenCredential",
            )
        for name, argument, id in ((names[1], "client_id", client), (names[2], "tenant_id", tenant)):
            if id is not None and not getattr(CREDENTIALS[known], argument):
                others = ", ".join(other for other, kind in CREDENTIALS.items() if getattr(kind, argument))
                raise OptionError(
                    "EHB_OPTION_NOT_APPLICABLE",
                    option=f"{name}={redacted(id)}",
                    reason=f"{names[0]}={known} does not accept it, unlike {others} and callables",
                )
        if known != SERVICE_PRINCIPAL:
            return cls(known, client, tenant)
        for name, value in zip(names[1:], (client, tenant, secret), strict=True):
            if value is None:
                reason = f"{names[0]}={known} needs {', '.join(names[1:])}"
                raise OptionError("EHB_OPTION_REQUIRED", option=name, reason=reason)
        return cls(known, client, tenant, resolve_secret(names[3], str(secret)))

    @property
    def is_callable(self) -> bool:
        """Whether a user's callable returns the credential."""
        return ":" in self.credential

    def tokens(self) -> TokenCache:
        """The process's credential, which caches its tokens."""
        with _LOCK:
            if self not in _TOKENS:
                _TOKENS[self] = TokenCache(self._create)
            return _TOKENS[self]

    def options(self, names: _Names = OPTIONS) -> dict[str, str]:
        """The options with these `names` that `from_options` parses into this identity."""
        values = (self.credential, self.client_id, self.tenant_id, self.client_secret)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _create(self) -> TokenCredential:
        if self.is_callable:
            return self._call(OPTIONS)
        from azure import identity  # imported here because this is slow and often not needed

        kind = CREDENTIALS[self.credential]
        values = dict.fromkeys(kind.client_id, self.client_id) | dict.fromkeys(kind.tenant_id, self.tenant_id)
        values |= dict.fromkeys(kind.client_secret, self.client_secret)
        arguments = {name: value for name, value in values.items() if value is not None}
        credential: TokenCredential = getattr(identity, kind.name)(**arguments)
        return credential

    # --- callables ---------------------------------------------------------------------------------------------

    def _check_callable(self, names: _Names) -> None:
        if not _CALLABLE.fullmatch(self.credential):
            allowed = "package.module:callable, such as my_package.azure:credential"
            raise invalid_option(names[0], self.credential, allowed)
        if self not in _TOKENS:
            credential = self._call(names)
            with _LOCK:
                _TOKENS.setdefault(self, TokenCache(self._create, first=credential))

    def _call(self, names: _Names) -> TokenCredential:
        """The credential that the callable returns. Raises `OptionError`."""
        module, _, path = self.credential.partition(":")
        ids = {"client_id": self.client_id, "tenant_id": self.tenant_id}
        arguments = {name: id for name, id in ids.items() if id is not None}
        try:
            function: Any = importlib.import_module(module)
            for part in path.split("."):
                function = getattr(function, part)
            credential: TokenCredential = function(**arguments)
            get_token = getattr(credential, "get_token", None)
        except EhBalanceError:
            raise
        except (Exception, SystemExit) as error:  # any type, because the module is user code
            called = f"with {' and '.join(arguments)}" if arguments else "without arguments"
            raise self._unusable(names, f"importing and calling it {called} raised {error_text(error)}") from None
        if not callable(get_token) or inspect.iscoroutinefunction(get_token):
            kind = type(credential).__name__
            raise self._unusable(
                names,
                f"it returned a {kind}, not a TokenCredential: an object with a method get_token(*scopes) that is "
                "not from azure.identity.aio",
            )
        return credential

    def _unusable(self, names: _Names, reason: str) -> OptionError:
        return OptionError(
            "EHB_CREDENTIAL_UNUSABLE",
            option=names[0],
            value=redacted(self.credential),
            python=".".join(map(str, sys.version_info[:2])),
            host=socket.gethostname(),
            reason=reason,
        )


def clear_cache() -> None:
    """Drop all credentials of this process and their tokens."""
    global _LOCK
    _LOCK = threading.Lock()
    _TOKENS.clear()


_LOCK = threading.Lock()
_TOKENS: dict[Identity, TokenCache] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clear_cache)  # the locks may be held by threads that do not exist in the child
