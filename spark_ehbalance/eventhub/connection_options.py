"""The options for reading and writing from which a `Connection` is created."""

from __future__ import annotations

from spark_ehbalance.eventhub.credentials import CREDENTIALS
from spark_ehbalance.settings.option_specs import OptionSpec

_CREDENTIALS = ", ".join(f"`{name}`" for name in CREDENTIALS)

#: The options that may contain a secret, in lower case. Their own parsers check for secrets.
SECRET_OPTIONS = ("connectionstring", "clientsecret", "httpproxy")

#: Option → declaration. `Connection.from_options` checks them.
CONNECTION_OPTIONS = {
    "connectionString": OptionSpec(
        meaning="connection string with a key, preferably passed [by reference](security.md#secrets); if it has an "
        "`EntityPath`, you can omit `eventHubName`"
    ),
    "fullyQualifiedNamespace": OptionSpec(meaning="the namespace's host name, to connect with Entra ID"),
    "credential": OptionSpec(
        meaning=f"an azure-identity [credential](security.md#entra-id) ({_CREDENTIALS}), or "
        "`package.module:callable`, which returns a `TokenCredential`",
        default="`default`",
    ),
    "clientId": OptionSpec(meaning="the credential's client id, such as a user-assigned managed identity's"),
    "tenantId": OptionSpec(meaning="the credential's tenant"),
    "clientSecret": OptionSpec(
        meaning="the secret of a service principal, preferably passed [by reference](security.md#secrets)"
    ),
    "eventHubName": OptionSpec(meaning="the event hub"),
    "transportType": OptionSpec(
        meaning="`Amqp` (port 5671) or `AmqpOverWebsocket` (port 443); see [Networks](security.md#networks)",
        default="`Amqp`; with `httpProxy`: `AmqpOverWebsocket`",
    ),
    "httpProxy": OptionSpec(
        meaning="`http://HOST:PORT` of an HTTP proxy; if it needs a user and password, pass "
        "`http://USER:PASSWORD@HOST:PORT` [by reference](security.md#secrets)",
        default="none",
    ),
    "customEndpointAddress": OptionSpec(
        meaning="`HOST` or `HOST:PORT` to connect to instead of the namespace: [a gateway]"
        "(security.md#networks) whose TLS certificate is issued for `HOST`",
        default="none",
    ),
    "caFile": OptionSpec(
        meaning="PEM file of trusted certificate authorities; the path must be the same on all machines",
        default="certifi's",
    ),
    "allowPlaintextEmulator": OptionSpec(
        meaning="allow a connection string with `UseDevelopmentEmulator=true` to connect [without TLS]"
        "(security.md#networks) to a host other than localhost",
        default="`false`",
    ),
}
