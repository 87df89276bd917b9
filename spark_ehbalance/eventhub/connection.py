"""Checks the options for the hub and for authentication, and creates clients."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient

from spark_ehbalance.errors import OptionError, describe
from spark_ehbalance.eventhub import connection_string, credentials
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.network import DIRECT, Network, NetworkError, is_host
from spark_ehbalance.group.identity import Group
from spark_ehbalance.settings.option_texts import invalid_option
from spark_ehbalance.settings.secrets import (
    REFERENCES,
    is_hidden_by_spark,
    is_reference,
    looks_secret,
    redacted,
    resolve_secret,
)
from spark_ehbalance.text import logger

_LOG = logger(__name__)

_Client = TypeVar("_Client", EventHubConsumerClient, EventHubProducerClient)

_FORM = (
    "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY, optionally with "
    ";EntityPath=HUB"
)


@dataclass(frozen=True)
class Connection:
    """An event hub and how to authenticate: with `identity`, or with `connection_string`, which `repr` hides.
    `reference` is the reference to the secret from which the connection string was read; None if the option itself
    contains it."""

    namespace: str
    hub: str
    identity: Identity | None = None
    connection_string: str | None = field(default=None, repr=False)
    network: Network = field(default=DIRECT, kw_only=True)
    reference: str | None = field(default=None, kw_only=True)

    @classmethod
    def from_options(cls, options: Mapping[str, str | None], network: Network | None = None) -> Connection:
        """Parse `connectionString`, or `fullyQualifiedNamespace` with the credential options; `eventHubName`; and the
        options of `Network.from_options` unless `network` is given. Raises `OptionError`, whose text never contains a
        secret."""
        text, namespace = options["connectionString"], options["fullyQualifiedNamespace"]
        if text is None and namespace is None:
            raise OptionError(
                "EHB_OPTION_REQUIRED",
                option="connectionString or fullyQualifiedNamespace",
                reason="no other option sets the namespace",
            )
        others = [n for n in ("fullyQualifiedNamespace", *credentials.OPTIONS) if options.get(n) is not None]
        if text is not None and others:
            options_set = f"connectionString and {others[0]}"
            raise OptionError("EHB_OPTIONS_CONFLICT", options=options_set, reason="they are two ways to authenticate")
        connection = cls._by_key(text, options) if text is not None else cls._by_identity(str(namespace), options)
        connection = replace(connection, network=Network.from_options(options) if network is None else network)
        if reason := connection._plaintext_problem():
            option = "UseDevelopmentEmulator=true in connectionString"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=option, reason=reason)
        return connection

    @classmethod
    def _by_key(cls, option: str, options: Mapping[str, str | None]) -> Connection:
        text = resolve_secret("connectionString", option)
        try:
            parts = connection_string.parse(text)
        except ValueError as problem:
            raise _invalid(str(problem)) from None
        namespace = parts["Endpoint"]
        if looks_secret(namespace):
            raise _invalid("its Endpoint contains a secret")
        if not is_host(namespace):
            raise _invalid("its Endpoint is not a host name")
        if not is_reference(option) and not is_hidden_by_spark(option):
            reason = "Spark hides only connection strings with SharedAccessKey"
            raise OptionError("EHB_SECRET_EXPOSED", option="connectionString", reason=reason, allowed=REFERENCES)
        hub, entity_path = options["eventHubName"], parts.get("EntityPath")
        if (name := entity_path if hub is None else hub) is None:
            reason = "connectionString has no EntityPath"
            raise OptionError("EHB_OPTION_REQUIRED", option="eventHubName", reason=reason)
        if hub is not None and entity_path is not None and hub.lower() != entity_path.lower():
            names = f"eventHubName={redacted(hub)} and EntityPath={redacted(entity_path)} in connectionString"
            raise OptionError("EHB_OPTIONS_CONFLICT", options=names, reason="they name two event hubs")
        reference = option if is_reference(option) else None
        text = connection_string.join(parts)
        return cls(namespace, _checked_hub(name), connection_string=text, reference=reference)

    @classmethod
    def _by_identity(cls, namespace: str, options: Mapping[str, str | None]) -> Connection:
        host = connection_string.host_of(namespace)
        if "." not in host or not is_host(host):
            allowed = "a host name such as NAMESPACE.servicebus.windows.net"
            raise invalid_option("fullyQualifiedNamespace", namespace, allowed)
        if options["eventHubName"] is None:
            reason = "fullyQualifiedNamespace names no event hub"
            raise OptionError("EHB_OPTION_REQUIRED", option="eventHubName", reason=reason)
        return cls(host, _checked_hub(options["eventHubName"]), Identity.from_options(options))

    @property
    def hub_name(self) -> str:
        """Namespace and hub name, normalised as in `Group`."""
        group = self.group("")
        return f"{group.namespace}/{group.hub}"

    def group(self, consumer_group: str) -> Group:
        """The group of this hub's readers in `consumer_group`."""
        return Group.from_names(self.namespace, self.hub, consumer_group)

    def consumer_client(self, consumer_group: str, **settings: Any) -> EventHubConsumerClient:
        """A new client, which connects later; `settings` are additional arguments of the client. Raises `NetworkError`
        if this machine cannot read the CA file, or if the connection string disables TLS although TLS is required."""
        return self._client(EventHubConsumerClient, {"consumer_group": consumer_group} | settings)

    def producer_client(self, **settings: Any) -> EventHubProducerClient:
        """Like `consumer_client`, but for sending."""
        return self._client(EventHubProducerClient, settings)

    def _client(self, kind: type[_Client], settings: dict[str, Any]) -> _Client:
        if reason := self._plaintext_problem():
            problem = f"UseDevelopmentEmulator=true in connectionString cannot be used: {reason}"
            raise NetworkError("EHB_NETWORK_INVALID", target=self.hub_name, problem=problem)
        settings = self.network.client_settings(self.namespace) | settings
        if self.connection_string is not None:
            newest = _NEWEST.get(self, self.connection_string)
            return kind.from_connection_string(newest, eventhub_name=self.hub, **settings)
        tokens = (self.identity or Identity()).tokens()
        return kind(fully_qualified_namespace=self.namespace, eventhub_name=self.hub, credential=tokens, **settings)

    def _plaintext_problem(self) -> str | None:
        """The reason why connecting without TLS is not allowed; None if the client uses TLS or may connect without
        it."""
        pairs = (part.partition("=") for part in (self.connection_string or "").split(";"))
        # includes spellings that the current client does not accept
        is_plaintext = any(
            key.strip().lower() == "usedevelopmentemulator" and value.strip().lower() != "false"
            for key, _, value in pairs
        )
        return self.network.plaintext_problem(self.namespace) if is_plaintext else None

    def renew_credentials(self) -> None:
        """Replace a refused key or token in this process: the next client uses the key that `reference` contains now,
        or a new token. If that key is unusable, the old one is kept."""
        if self.identity is not None:
            self.identity.tokens().renew()
        if self.reference is not None:
            try:
                _NEWEST[self] = self._read_again()
            except OptionError as error:
                _LOG.warning(
                    "No new key found after the old one was refused: hub=%s host=%s reason=%s",
                    self.hub_name, socket.gethostname(), describe(error),
                )  # fmt: skip

    def with_current_key(self) -> Connection:
        """The same connection with the key that `reference` contains now; unchanged if that key is unusable."""
        with contextlib.suppress(OptionError):
            return self if self.reference is None else replace(self, connection_string=self._read_again())
        return self

    def _read_again(self) -> str:
        """The connection string that `reference` contains now. Raises `OptionError` if it is unusable or names another
        hub."""
        options = {"connectionString": self.reference, "fullyQualifiedNamespace": None, "eventHubName": self.hub}
        found = Connection.from_options(options, self.network)
        if found.hub_name != self.hub_name:
            reason = f"it now names {found.hub_name}"
            raise OptionError("EHB_SECRET_UNAVAILABLE", option="connectionString", value=self.reference, reason=reason)
        assert found.connection_string is not None
        return found.connection_string


#: Connection with a refused key → the process's newest connection string for it.
_NEWEST: dict[Connection, str] = {}


def _invalid(problem: str) -> OptionError:
    return OptionError("EHB_CONNECTION_STRING_INVALID", problem=problem, allowed=f"{_FORM}; or {REFERENCES}")


def _checked_hub(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,255}", name, re.ASCII):
        raise invalid_option("eventHubName", name, "up to 256 letters, digits and any of _ - .")
    return name
