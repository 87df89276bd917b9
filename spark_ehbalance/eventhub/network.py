"""Network settings (transport, proxy, address, trusted certificates), and errors that name the option to check.

The checks follow azure-eventhub: it uses a proxy only with a websocket, and the certificate must match the host that it
connects to, which is the custom address if one is set.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
from azure.eventhub import TransportType

from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.group.identity import is_loopback
from spark_ehbalance.settings.option_texts import invalid_option
from spark_ehbalance.settings.parsing import flag
from spark_ehbalance.settings.secrets import REFERENCES, is_reference, redacted, resolve_secret

AMQP, WEBSOCKET = "Amqp", "AmqpOverWebsocket"

#: The ports of Event Hubs.
_AMQP_PORT, _WEBSOCKET_PORT = 5671, 443

#: Time limit in seconds for each step of opening a websocket, and for the TLS handshake: they need round trips,
#: possibly to another continent and through a proxy. The client itself does not limit a TLS handshake.
_STEP_TIMEOUT = 10.0

#: A name or an IPv4 address: the client does not support IPv6 addresses.
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?"

_ENDPOINT_FORM = "HOST or HOST:PORT, such as gateway.example.com:443, with a name or an IPv4 address as HOST"
_PROXY_FORM = f"http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; or {REFERENCES}"

#: The client's message for a connection that could not be opened.
_NOT_OPENED = "Failed to initiate the connection"

#: Error classes of the websocket library, by name, because the library is imported only where it is used.
_NO_ADDRESS, _PROXY_REFUSED, _BAD_STATUS = (
    "WebSocketAddressException",
    "WebSocketProxyException",
    "WebSocketBadStatusException",
)


class NetworkError(HubUnavailableError):
    """The network settings are invalid on this machine, so a retry is pointless. The message names the option."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. `repr` hides user and password."""

    host: str
    port: int
    user: str | None = field(default=None, repr=False)  # some proxies accept a token instead of a user name
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Network:
    """How to reach the hub. `endpoint` is the custom address: a host, and a port or None for the transport's default.
    `plaintext_emulator` allows connecting to an emulator on another host without TLS."""

    transport: str = AMQP
    proxy: Proxy | None = None
    endpoint: tuple[str, int | None] | None = None
    ca_file: str | None = None
    plaintext_emulator: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str | None]) -> Network:
        """Parse the options named in `OPTIONS`. Raises `OptionError`, whose text never contains a password."""
        transport, proxy, endpoint, ca_file, plaintext = (options.get(name) for name in OPTIONS)
        network = cls(
            proxy=None if proxy is None else _proxy(proxy),
            transport=_transport(transport, proxied=proxy is not None),
            plaintext_emulator=plaintext is not None and _plaintext_emulator(plaintext),
            endpoint=None if endpoint is None else _endpoint(endpoint),
            ca_file=None if ca_file is None else _ca_file(ca_file),
        )
        if network.plaintext_emulator and ca_file is not None:
            raise OptionError(
                "EHB_OPTIONS_CONFLICT",
                options="allowPlaintextEmulator and caFile",
                reason="without TLS there is no certificate to verify",
            )
        return network

    @property
    def websocket(self) -> bool:
        """Whether AMQP is sent over a websocket."""
        return self.transport == WEBSOCKET

    def client_settings(self, namespace: str) -> dict[str, Any]:
        """The keyword arguments of the client. Raises `NetworkError` if this machine cannot read the CA file."""
        settings: dict[str, Any] = {
            # always set, because a custom address alone would imply a websocket
            "transport_type": TransportType.AmqpOverWebsocket if self.websocket else TransportType.Amqp,
            "ssl_context": self._tls(namespace),
        }
        if self.proxy is not None:
            settings["http_proxy"] = {
                "proxy_hostname": self.proxy.host,
                "proxy_port": self.proxy.port,
                "username": self.proxy.user,
                "password": self.proxy.password,
            }
        if self.endpoint is not None:
            settings["custom_endpoint_address"] = f"sb://{self._server(namespace)[0]}"
        return settings

    def plaintext_problem(self, namespace: str) -> str | None:
        """The reason why UseDevelopmentEmulator=true must not disable TLS to `namespace`; None if it may disable TLS.

        Proxies and routers could read the token, so nothing unencrypted may leave this machine.
        """
        if self.ca_file is not None:
            return "it disables TLS, and caFile is set"
        host = self.endpoint[0] if self.endpoint is not None else namespace.partition(":")[0]
        remote = [name for name in (host, self.proxy and self.proxy.host) if name and not is_loopback(name)]
        if not remote or self.plaintext_emulator:
            return None
        return (
            f"it disables TLS, and {remote[0]} is not on this machine; only localhost and 127.0.0.0/8 are "
            "allowed, or any host with allowPlaintextEmulator=true"
        )

    def opening_timeout(self, seconds: float) -> float:
        """The client's `socket_timeout` while it connects: `seconds`, but always `_STEP_TIMEOUT` for a websocket, where
        the timeout also limits opening the connection."""
        return _STEP_TIMEOUT if self.websocket else seconds

    def _tls(self, namespace: str) -> ssl.SSLContext:
        path = self.ca_file or certifi.where()
        try:
            status = os.stat(path)
            return _context(path, (status.st_mtime_ns, status.st_size))
        except OSError as error:  # includes the errors of ssl
            file = f"caFile={path}" if self.ca_file else f"certifi's list of authorities, {path},"
            problem = f"{file} is not readable on {socket.gethostname()}: {error.strerror}"
            raise NetworkError("EHB_NETWORK_INVALID", target=namespace, problem=problem) from None

    # --- errors --------------------------------------------------------------------------------------------------

    def problem(self, error: BaseException, namespace: str) -> str | None:
        """The reason why no connection to `namespace` could be opened, on one line that names the option to check; None
        if `error` has another cause."""
        causes = list(_causes(error))
        opening = any(_NOT_OPENED in str(cause) for cause in causes)
        return next((text for cause in causes if (text := self._problem(cause, namespace, opening=opening))), None)

    def is_final(self, error: BaseException) -> bool:
        """Whether the settings are invalid, so that a retry is pointless."""
        return any(
            isinstance(cause, NetworkError | ssl.SSLCertVerificationError)
            or (type(cause).__name__ == _PROXY_REFUSED and _status(cause) in (401, 403, 407))
            for cause in _causes(error)
        )

    def _problem(self, error: BaseException, namespace: str, *, opening: bool) -> str | None:
        """Like `problem`, but considers only `error` itself, not its causes."""
        kind, host = type(error).__name__, socket.gethostname()
        server, option = self._server(namespace)
        if isinstance(error, NetworkError):
            return str(error.parameters["problem"])
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message.rstrip(".")
            check = f"check {option}, caFile and the clock of {host}"
            return f"the certificate of {server} is not trusted ({reason}); {check}"
        if kind == _BAD_STATUS:
            return f"{server} refuses the websocket (status {_status(error)}); check {option}"
        peer, option = self._peer(namespace)
        if kind == _PROXY_REFUSED:
            return f"{peer} refuses the connection to {server} (status {_status(error) or 'unknown'}); check {option}"
        if isinstance(error, socket.gaierror) or kind == _NO_ADDRESS:
            return f"the name of {peer} does not resolve on {host}; check {option}"
        if opening and (isinstance(error, OSError) or kind == "WebSocketTimeoutException"):
            firewall = ""
            if peer.endswith(f":{_AMQP_PORT}") and self.endpoint is None:
                firewall = f" and the firewall (transportType={WEBSOCKET} uses port {_WEBSOCKET_PORT})"
            reason = getattr(error, "strerror", None) or str(error)
            return f"no connection to {peer} ({reason}); check {option}{firewall}"
        return None

    def _server(self, namespace: str) -> tuple[str, str]:
        """The server as host:port, and the name of the option that sets it."""
        default = _WEBSOCKET_PORT if self.websocket else _AMQP_PORT
        if self.endpoint is not None:
            return f"{self.endpoint[0]}:{self.endpoint[1] or default}", "customEndpointAddress"
        host = namespace if ":" in namespace and not self.websocket else f"{namespace.partition(':')[0]}:{default}"
        return host, "connectionString or fullyQualifiedNamespace"

    def _peer(self, namespace: str) -> tuple[str, str]:
        """The server or proxy to which this machine connects, as host:port, and the name of the option that sets it."""
        if self.proxy is not None:
            return f"the proxy {self.proxy.host}:{self.proxy.port}", "httpProxy"
        server, option = self._server(namespace)
        if self.websocket and ("https_proxy" in os.environ or "HTTPS_PROXY" in os.environ):
            # no_proxy decides whether the proxy is used; its address is not shown, because it may contain a password
            return f"{server} or the proxy in the environment", f"{option}, https_proxy and no_proxy"
        return server, option


#: A direct connection to the hub's own address.
DIRECT = Network()

#: The options of a `Network`, in the order of `from_options`.
OPTIONS = ("transportType", "httpProxy", "customEndpointAddress", "caFile", "allowPlaintextEmulator")


# --- options ---------------------------------------------------------------------------------------------------------


def _transport(value: str | None, *, proxied: bool) -> str:
    if value is None:
        return WEBSOCKET if proxied else AMQP
    transport = {name.lower(): name for name in (AMQP, WEBSOCKET)}.get(value.lower())
    if transport is None:
        raise invalid_option("transportType", value, f"one of {AMQP}, {WEBSOCKET}")
    if proxied and transport == AMQP:
        options = f"transportType={AMQP} and httpProxy"
        raise OptionError("EHB_OPTIONS_CONFLICT", options=options, reason=f"a proxy requires {WEBSOCKET}")
    return transport


def _endpoint(value: str) -> tuple[str, int | None]:
    text = re.sub(r"^sb://|/$", "", value)
    if not is_host(text):
        raise invalid_option("customEndpointAddress", value, _ENDPOINT_FORM)
    host, _, port = text.partition(":")
    return host, int(port) if port else None


def _plaintext_emulator(value: str) -> bool:
    try:
        return flag(value)
    except ValueError as allowed:
        raise invalid_option("allowPlaintextEmulator", value, allowed) from None


def is_host(text: str) -> bool:
    """Whether `text` is HOST or HOST:PORT, with a name or an IPv4 address as HOST."""
    match = re.fullmatch(f"{_HOST}(:(?P<port>[0-9]{{1,5}}))?", text)
    return match is not None and (match["port"] is None or 1 <= int(match["port"]) <= 65535)


def _proxy(value: str) -> Proxy:
    text = resolve_secret("httpProxy", value)
    visible = "(not shown, as it may contain a password)" if "@" in text or is_reference(value) else redacted(value)
    invalid = OptionError("EHB_OPTION_INVALID", option="httpProxy", value=visible, allowed=_PROXY_FORM)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise invalid from None
    host = parts.hostname or ""
    if parts.scheme != "http" or not re.fullmatch(_HOST, host) or not port or parts.path.strip("/") or parts.query:
        raise invalid
    if parts.username is not None and text == value:
        reason = "it contains a user or a password"
        raise OptionError("EHB_SECRET_EXPOSED", option="httpProxy", reason=reason, allowed=REFERENCES)
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    if password and not user:
        raise invalid
    return Proxy(host, port, user or None, password)


def _ca_file(value: str) -> str:
    """The absolute path of the file, after reading it once to check it. Executors read the file at the same path."""
    path = os.path.abspath(value)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        problem = "no PEM certificates in the file"
    except OSError as error:
        problem = f"not readable: {error.strerror}"
    else:
        return path
    allowed = "the path of a PEM file of certificates"
    raise OptionError("EHB_FILE_INVALID", file=f"caFile={redacted(value)}", problem=problem, allowed=allowed)


# --- TLS -------------------------------------------------------------------------------------------------------------


class _Context(ssl.SSLContext):
    """A client context with a time limit for the handshake."""

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **settings: Any) -> ssl.SSLSocket:
        before = sock.gettimeout()
        if before is None:  # the client set no time limit
            sock.settimeout(_STEP_TIMEOUT)
        with sock:  # stays open during the handshake, so that shutting it down aborts the handshake
            wrapped = super().wrap_socket(sock.dup(), *arguments, **settings)
        wrapped.settimeout(before)
        return wrapped


@functools.lru_cache(4)
def _context(path: str, _: tuple[int, int]) -> ssl.SSLContext:
    """The TLS context for an unchanged file, cached per process, because reading certifi's file takes longer than
    connecting. The context is as strict as the client's own."""
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    return context


# --- errors ----------------------------------------------------------------------------------------------------------


#: Attributes of the client's errors that contain their causes.
_CAUSE_ATTRIBUTES = ("error", "details", "inner_exception")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The causes of `error`, starting with the root cause, and `error` itself last."""
    chain: list[BaseException] = []
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if any(error is known for known in chain):
            continue
        chain.append(error)
        values = (getattr(error, name, None) for name in _CAUSE_ATTRIBUTES)
        causes = (error.__context__, error.__cause__, *error.args, *values)
        waiting += [cause for cause in causes if isinstance(cause, BaseException)]
    yield from reversed(chain)


def _status(error: BaseException) -> int | None:
    """The HTTP status in the text of an error."""
    match = re.search(r"status:? (\d{3})\b", str(error))
    return int(match[1]) if match else None
