"""The options that make a `Connection`, for reading and for writing."""

from __future__ import annotations

from spark_ehbalance.eventhub.credentials import CREDENTIALS
from spark_ehbalance.settings.option_specs import OptionSpec

_CREDENTIALS = ", ".join(f"`{name}`" for name in CREDENTIALS)

#: The options that may hold a secret, in lower case. They check themselves.
SECRET_OPTIONS = ("connectionstring", "clientsecret", "httpproxy")

#: Option → declaration. `Connection.from_options` checks them.
CONNECTION_OPTIONS = {
    "connectionString": OptionSpec(
        meaning="connect with a key, best [by reference](security.md#secrets); with `EntityPath` it "
        "needs no `eventHubName`"
    ),
    "fullyQualifiedNamespace": OptionSpec(meaning="connect with Entra ID: the namespace's host name"),
    "credential": OptionSpec(
        meaning=f"[credential](security.md#entra-id): {_CREDENTIALS} of azure-identity, or "
        "`package.module:callable`, which returns a `TokenCredential`",
        default="`default`",
    ),
    "clientId": OptionSpec(meaning="the credential's client id, such as that of a user-assigned managed identity"),
    "tenantId": OptionSpec(meaning="the credential's tenant"),
    "clientSecret": OptionSpec(meaning="the secret of a service principal, best [by reference](security.md#secrets)"),
    "eventHubName": OptionSpec(meaning="the event hub"),
    "transportType": OptionSpec(
        meaning="`Amqp`, on port 5671, or `AmqpOverWebsocket`, on port 443, see [Networks](security.md#networks)",
        default="`Amqp`, with `httpProxy` `AmqpOverWebsocket`",
    ),
    "httpProxy": OptionSpec(
        meaning="`http://HOST:PORT` of an HTTP proxy; with user and password "
        "[by reference](security.md#secrets): `http://USER:PASSWORD@HOST:PORT`",
        default="none",
    ),
    "customEndpointAddress": OptionSpec(
        meaning="`HOST` or `HOST:PORT` to connect to instead of the namespace: [a gateway]"
        "(security.md#networks) with a certificate of its own name",
        default="none",
    ),
    "caFile": OptionSpec(
        meaning="PEM file with the trusted certificate authorities, at the same path on all machines",
        default="certifi's",
    ),
    "allowPlaintextEmulator": OptionSpec(
        meaning="allow a connection string with `UseDevelopmentEmulator=true` to connect [without TLS]"
        "(security.md#networks) to another host",
        default="`false`",
    ),
}
