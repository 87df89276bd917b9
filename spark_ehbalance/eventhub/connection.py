"""The connection options: which hub, and how to authenticate; checked, and the client that they make."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub import connection_string, credentials
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.network import DIRECT, Network, NetworkError, is_server
from spark_ehbalance.group.identity import Group
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
    """One event hub and how to authenticate: `identity` or `connection_string`, which is not in `repr`. `reference` is
    where the connection string was read, None if it was given itself."""

    namespace: str
    hub: str
    identity: Identity | None = None
    connection_string: str | None = field(default=None, repr=False)
    network: Network = field(default=DIRECT, kw_only=True)
    reference: str | None = field(default=None, kw_only=True)

    @classmethod
    def from_options(cls, options: Mapping[str, str | None], network: Network | None = None) -> Connection:
        """From `connectionString`, or `fullyQualifiedNamespace` with the options of a credential; `eventHubName`; and
        `network`, or what `Network.from_options` takes. Raises `OptionError`, which never repeats a secret."""
        text, namespace = options["connectionString"], options["fullyQualifiedNamespace"]
        if text is None and namespace is None:
            raise OptionError("neither connectionString nor fullyQualifiedNamespace is set: one of them is needed")
        others = [n for n in ("fullyQualifiedNamespace", *credentials.OPTIONS) if options.get(n) is not None]
        if text is not None and others:
            raise OptionError(f"connectionString and {others[0]} are both set: set one way in")
        made = cls._by_key(text, options) if text is not None else cls._by_identity(str(namespace), options)
        made = replace(made, network=Network.from_options(options) if network is None else network)
        if problem := made._plaintext_problem():
            raise OptionError(problem)
        return made

    @classmethod
    def _by_key(cls, given: str, options: Mapping[str, str | None]) -> Connection:
        text = resolve_secret("connectionString", given)
        allowed = f"allowed is {_FORM}; or {REFERENCES}"
        try:
            parts = connection_string.parse(text)
        except ValueError as problem:
            raise OptionError(f"option connectionString is wrong: {problem}; {allowed}") from None
        namespace = parts["Endpoint"]
        if looks_secret(namespace):
            raise OptionError(f"option connectionString has a secret as its Endpoint: {allowed}")
        if not is_server(namespace):
            raise OptionError(f"option connectionString is wrong: its Endpoint is no host name; {allowed}")
        text = connection_string.joined(parts)
        if not is_reference(given) and not is_hidden_by_spark(given):
            raise OptionError(f"connectionString without SharedAccessKey would be shown by Spark: write {REFERENCES}")
        hub, inside = options["eventHubName"], parts.get("EntityPath")
        if (name := inside if hub is None else hub) is None:
            raise OptionError("eventHubName is not set, and connectionString has no EntityPath: one of them is needed")
        if hub is not None and inside is not None and hub.lower() != inside.lower():
            raise OptionError(
                f"eventHubName={redacted(hub)} contradicts EntityPath={redacted(inside)} in connectionString"
            )
        reference = given if is_reference(given) else None
        return cls(namespace, _hub_name(name), connection_string=text, reference=reference)

    @classmethod
    def _by_identity(cls, namespace: str, options: Mapping[str, str | None]) -> Connection:
        given, namespace = namespace, connection_string.host_of(namespace)
        if "." not in namespace or not is_server(namespace):
            raise OptionError(
                f"option fullyQualifiedNamespace={redacted(given)} is wrong: allowed is a host name such as "
                "NAMESPACE.servicebus.windows.net"
            )
        if options["eventHubName"] is None:
            raise OptionError("eventHubName is not set: it is needed with fullyQualifiedNamespace")
        return cls(namespace, _hub_name(options["eventHubName"]), Identity.from_options(options))

    @property
    def hub_name(self) -> str:
        """The hub with its namespace, as in its `Group`."""
        group = self.group("")
        return f"{group.namespace}/{group.hub}"

    def group(self, consumer_group: str) -> Group:
        """The group that readers of `consumer_group` of this hub belong to."""
        return Group.from_names(self.namespace, self.hub, consumer_group)

    def consumer_client(self, consumer_group: str, **settings: Any) -> EventHubConsumerClient:
        """A new client, which connects later; `settings` are more of its arguments. Raises `NetworkError` if this
        machine cannot read the CA file, or may not connect without TLS."""
        return self._client(EventHubConsumerClient, {"consumer_group": consumer_group} | settings)

    def producer_client(self, **settings: Any) -> EventHubProducerClient:
        """The same for sending."""
        return self._client(EventHubProducerClient, settings)

    def _client(self, kind: type[_Client], settings: dict[str, Any]) -> _Client:
        if problem := self._plaintext_problem():
            raise NetworkError(problem)
        settings = self.network.client_settings(self.namespace) | settings
        if self.connection_string is not None:
            newest = _NEWEST.get(self, self.connection_string)
            return kind.from_connection_string(newest, eventhub_name=self.hub, **settings)
        tokens = (self.identity or Identity()).tokens()
        return kind(fully_qualified_namespace=self.namespace, eventhub_name=self.hub, credential=tokens, **settings)

    def _plaintext_problem(self) -> str | None:
        """Why the client must not be used, as it would speak without TLS; None if it may be."""
        pairs = (each.partition("=") for each in (self.connection_string or "").split(";"))
        # more spellings than the client of today takes
        asked = any(k.strip().lower() == "usedevelopmentemulator" and v.strip().lower() != "false" for k, _, v in pairs)
        return self.network.plaintext_problem(self.namespace) if asked else None

    def renew(self) -> None:
        """Replace a refused key or token: the next client uses the key that `reference` contains now, or a new token.
        Only this process reads the reference again; without a usable key there, the old one stays."""
        if self.identity is not None:
            self.identity.tokens().renew()
        if self.reference is not None:
            try:
                _NEWEST[self] = self._read_again()
            except OptionError as error:
                _LOG.warning(
                    "the key of %s was refused, and %s has no other: %s", self.hub_name, socket.gethostname(), error
                )

    def current(self) -> Connection:
        """The same hub with the key that `reference` contains now; unchanged if there is no usable key."""
        with contextlib.suppress(OptionError):
            return self if self.reference is None else replace(self, connection_string=self._read_again())
        return self

    def _read_again(self) -> str:
        """The connection string that `reference` contains now. Raises `OptionError`, also if it is of another hub."""
        options = {"connectionString": self.reference, "fullyQualifiedNamespace": None, "eventHubName": self.hub}
        found = Connection.from_options(options, self.network)
        if found.hub_name != self.hub_name:
            raise OptionError(f"option connectionString={self.reference} names {found.hub_name} now")
        assert found.connection_string is not None
        return found.connection_string


#: The newest connection string of this process for a connection whose key was refused.
_NEWEST: dict[Connection, str] = {}


def _hub_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,255}", name, re.ASCII):
        raise OptionError(
            f"option eventHubName={redacted(name)} is wrong: allowed are up to 256 letters, digits and any of _ - ."
        )
    return name
