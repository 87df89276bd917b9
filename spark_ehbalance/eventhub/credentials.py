"""Credentials of Entra ID: one of azure-identity by name, or one that a function of the user makes.

Names and a client secret travel from the driver to planner and workers: each process makes the credential, and
fetches its tokens.
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
from spark_ehbalance.settings.secrets import redacted, resolve_secret

#: The options that are read here.
OPTIONS = ("credential", "clientId", "tenantId", "clientSecret")

#: The same as storage options.
STORAGE_OPTIONS = ("credential", "client_id", "tenant_id", "client_secret")

_Names = tuple[str, str, str, str]

#: The value of `credential` that takes a client secret, and that a client secret stands for.
SERVICE_PRINCIPAL = "servicePrincipal"


class _Kind(NamedTuple):
    """A class of azure-identity, and its arguments for a client id, a tenant id and a client secret: none if it takes
    none."""

    name: str
    client_id: tuple[str, ...] = ()
    tenant_id: tuple[str, ...] = ()
    client_secret: tuple[str, ...] = ()


#: Values of the option `credential`. Each takes what else it needs from the environment.
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
    """How a process gets tokens of Entra ID: by a credential's name, or by `package.module:callable`."""

    credential: str = "default"
    client_id: str | None = None
    tenant_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str | None], names: _Names = OPTIONS) -> Identity:
        """From the options of these `names`. A callable is called here once, to see what it returns.

        Raises `OptionError`.
        """
        wanted, client, tenant, secret = (options.get(name) for name in names)
        wanted = (wanted or ("default" if secret is None else SERVICE_PRINCIPAL)).strip()
        for name, id in zip(names[1:3], (client, tenant), strict=True):
            if id is not None and not re.fullmatch(r"[\w.-]{1,200}", id, re.ASCII):
                raise OptionError(
                    f"option {name}={redacted(id)} is wrong: allowed are letters, digits and any of _ - ."
                )
        if secret is not None and wanted.lower() != SERVICE_PRINCIPAL.lower():
            raise OptionError(
                f"{names[3]} and {names[0]}={redacted(wanted)} are both set: allowed is {SERVICE_PRINCIPAL}"
            )
        identity = cls(wanted, client, tenant)
        if identity.is_callable:
            identity._check_callable(names)
            return identity
        known = {name.lower(): name for name in CREDENTIALS}.get(wanted.lower())
        if known is None:
            raise OptionError(
                f"option {names[0]}={redacted(wanted)} is wrong: allowed is one of {', '.join(CREDENTIALS)}, or "
                "package.module:callable, which returns a TokenCredential"
            )
        for name, argument, id in ((names[1], "client_id", client), (names[2], "tenant_id", tenant)):
            if id is not None and not getattr(CREDENTIALS[known], argument):
                who = ", ".join(k for k, each in CREDENTIALS.items() if getattr(each, argument))
                raise OptionError(
                    f"option {name}={redacted(id)} is wrong: {names[0]}={known} takes none; allowed is one with {who} "
                    "or a callable"
                )
        if known != SERVICE_PRINCIPAL:
            return cls(known, client, tenant)
        for name, given in zip(names[1:], (client, tenant, secret), strict=True):
            if given is None:
                raise OptionError(f"{name} is not set: {names[0]}={known} needs {', '.join(names[1:])}")
        return cls(known, client, tenant, resolve_secret(names[3], str(secret)))

    @property
    def is_callable(self) -> bool:
        """Whether a function of the user makes the credential."""
        return ":" in self.credential

    def tokens(self) -> TokenCache:
        """The credential, one for the whole process: it keeps its tokens."""
        with _LOCK:
            if self not in _TOKENS:
                _TOKENS[self] = TokenCache(self._made)
            return _TOKENS[self]

    def options(self, names: _Names = OPTIONS) -> dict[str, str]:
        """The options of these `names` that mean it."""
        values = (self.credential, self.client_id, self.tenant_id, self.client_secret)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _made(self) -> TokenCredential:
        if self.is_callable:
            return self._called(OPTIONS)
        from azure import identity  # slow to import, and often not needed

        kind = CREDENTIALS[self.credential]
        given = dict.fromkeys(kind.client_id, self.client_id) | dict.fromkeys(kind.tenant_id, self.tenant_id)
        given |= dict.fromkeys(kind.client_secret, self.client_secret)
        made: TokenCredential = getattr(identity, kind.name)(**{n: id for n, id in given.items() if id is not None})
        return made

    # --- callables ---------------------------------------------------------------------------------------------

    def _check_callable(self, names: _Names) -> None:
        if not _CALLABLE.fullmatch(self.credential):
            raise OptionError(
                f"option {names[0]}={redacted(self.credential)} is wrong: allowed is package.module:callable, such as "
                "my_package.azure:credential"
            )
        if self not in _TOKENS:
            made = self._called(names)
            with _LOCK:
                _TOKENS.setdefault(self, TokenCache(self._made, first=made))

    def _called(self, names: _Names) -> TokenCredential:
        """The credential that the callable returns. Raises `OptionError`."""
        wrong = f"option {names[0]}={redacted(self.credential)} is wrong:"
        module, _, path = self.credential.partition(":")
        ids = {"client_id": self.client_id, "tenant_id": self.tenant_id}
        given = {name: id for name, id in ids.items() if id is not None}
        try:
            function: Any = importlib.import_module(module)
            for part in path.split("."):
                function = getattr(function, part)
            made = function(**given)
            get_token = getattr(made, "get_token", None)
        except EhBalanceError:
            raise
        except (Exception, SystemExit) as error:  # of whatever kind: the module is anybody's code
            called = f"called with {' and '.join(given)}" if given else "called without arguments"
            raise OptionError(
                f"{wrong} imported and {called} by Python {'.'.join(map(str, sys.version_info[:2]))} on "
                f"{socket.gethostname()}, it has raised {error_text(error)}. The module must be installed for Spark's "
                "driver and executors, or be given to both with --py-files"
            ) from None
        if not callable(get_token) or inspect.iscoroutinefunction(get_token):
            raise OptionError(
                f"{wrong} what it has returned is of the type {type(made).__name__}: allowed is a TokenCredential, "
                "which has the method get_token(*scopes) and is not of azure.identity.aio"
            )
        credential: TokenCredential = made
        return credential


def forget() -> None:
    """Forget all credentials of this process and their tokens."""
    global _LOCK
    _LOCK = threading.Lock()
    _TOKENS.clear()


_LOCK = threading.Lock()
_TOKENS: dict[Identity, TokenCache] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # the locks may be held, by threads that the child does not have
