"""The way to the hub: transport, proxy, address and trusted certificates; and errors that name the option to check.

What azure-eventhub does with these settings decides what is refused here: a proxy works with a websocket only; the
server's certificate must be for the host that is called, so for the custom address where there is one.
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
from spark_ehbalance.settings.parsing import flag
from spark_ehbalance.settings.secrets import REFERENCES, is_reference, redacted, resolve_secret

AMQP, WEBSOCKET = "Amqp", "AmqpOverWebsocket"

#: The ports of Event Hubs.
_AMQP_PORT, _WEBSOCKET_PORT = 5671, 443

#: Seconds for each step of opening a websocket, and for the TLS handshake: round trips, possibly to another continent
#: and through a proxy. The client has no time limit of its own for a TLS handshake.
_STEP = 10.0

#: A name or an IPv4 address: the client cannot call an IPv6 address.
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?"

_ENDPOINT_FORM = "HOST or HOST:PORT, such as gateway.example.com:443, with a name or an IPv4 address as HOST"
_PROXY_FORM = f"http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; or {REFERENCES}"

#: What the client says when it cannot open a connection.
_NOT_OPENED = "Failed to initiate the connection"

#: The names of the errors of the websocket's library, which is imported only where it is used.
_NO_ADDRESS, _PROXY_REFUSED, _BAD_STATUS = (
    "WebSocketAddressException",
    "WebSocketProxyException",
    "WebSocketBadStatusException",
)


class NetworkError(HubUnavailableError):
    """The way to the hub is set wrong on this machine: trying again is of no use. The text names the option."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. User and password are not in `repr`."""

    host: str
    port: int
    user: str | None = field(default=None, repr=False)  # some proxies take a token for it
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Network:
    """How the hub is reached. `endpoint` is a host and a port, None the port of the transport. `plaintext_emulator`:
    whether an emulator on another host may be reached without TLS."""

    transport: str = AMQP
    proxy: Proxy | None = None
    endpoint: tuple[str, int | None] | None = None
    ca_file: str | None = None
    plaintext_emulator: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str | None]) -> Network:
        """From the options with the names in `OPTIONS`. Raises `OptionError`, which never repeats a password."""
        transport, proxy, endpoint, ca_file, plaintext = (options.get(name) for name in OPTIONS)
        made = cls(
            proxy=None if proxy is None else _proxy(proxy),
            transport=_transport(transport, proxied=proxy is not None),
            plaintext_emulator=plaintext is not None and _plaintext_emulator(plaintext),
            endpoint=None if endpoint is None else _endpoint(endpoint),
            ca_file=None if ca_file is None else _ca_file(ca_file),
        )
        if made.plaintext_emulator and ca_file is not None:
            raise OptionError("allowPlaintextEmulator and caFile are both set: without TLS there is nothing to verify")
        return made

    @property
    def websocket(self) -> bool:
        """Whether AMQP goes over a websocket."""
        return self.transport == WEBSOCKET

    def client_settings(self, namespace: str) -> dict[str, Any]:
        """The keyword arguments of the client. Raises `NetworkError` if this machine cannot read the CA file."""
        settings: dict[str, Any] = {
            # always said, because a custom address alone would mean a websocket
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
        """Why `namespace` must not be called without TLS, as UseDevelopmentEmulator=true has it; None if it may be.

        Whoever is on the way, such as a proxy, could read the token, so nothing may leave this machine.
        """
        if self.ca_file is not None:
            return "connectionString with UseDevelopmentEmulator=true, which switches TLS off, and caFile are both set"
        host = self.endpoint[0] if self.endpoint is not None else namespace.partition(":")[0]
        others = [each for each in (host, self.proxy and self.proxy.host) if each and not is_loopback(each)]
        if not others or self.plaintext_emulator:
            return None
        return (
            f"UseDevelopmentEmulator=true in connectionString switches TLS off, and {others[0]} is not on this "
            "machine: allowed are localhost and 127.0.0.0/8; for an emulator elsewhere set allowPlaintextEmulator=true"
        )

    def opening_timeout(self, seconds: float) -> float:
        """The client's `socket_timeout`: `seconds`, but for a websocket, which would have no longer to connect."""
        return _STEP if self.websocket else seconds

    def _tls(self, namespace: str) -> ssl.SSLContext:
        path = self.ca_file or certifi.where()
        try:
            found = os.stat(path)
            return _context(path, (found.st_mtime_ns, found.st_size))
        except OSError as error:  # also one of ssl
            option = f"option caFile={path}" if self.ca_file else f"the list of authorities of certifi, {path},"
            raise NetworkError(
                f"{option} cannot be read on {socket.gethostname()}, which connects to {namespace}: {error.strerror}. "
                "The file must be at this path on the driver's machine and on each executor's"
            ) from None

    # --- errors --------------------------------------------------------------------------------------------------

    def problem(self, error: BaseException, namespace: str) -> str | None:
        """Why no connection to `namespace` could be opened, in one line that names the option to check; None if `error`
        has another reason."""
        chain = list(_chain(error))
        opening = any(_NOT_OPENED in str(each) for each in chain)
        return next((text for each in chain if (text := self._problem(each, namespace, opening=opening))), None)

    def is_final(self, error: BaseException) -> bool:
        """Whether the settings are wrong, so that a retry cannot succeed."""
        return any(
            isinstance(each, NetworkError | ssl.SSLCertVerificationError)
            or (type(each).__name__ == _PROXY_REFUSED and _status(each) in (401, 403, 407))
            for each in _chain(error)
        )

    def _problem(self, error: BaseException, namespace: str, *, opening: bool) -> str | None:
        """The reason that `error` alone gives."""
        kind, host = type(error).__name__, socket.gethostname()
        server, option = self._server(namespace)
        if isinstance(error, NetworkError):
            return str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            why = error.verify_message.rstrip(".")
            return (
                f"the certificate of {server} is not accepted ({why}): check {option}, caFile and the clock of {host}"
            )
        if kind == _BAD_STATUS:
            return f"{server} refuses the websocket (status {_status(error)}): check {option}"
        called, option = self._called(namespace)
        if kind == _PROXY_REFUSED:
            return f"{called} refuses the connection to {server} (status {_status(error) or 'unknown'}): check {option}"
        if isinstance(error, socket.gaierror) or kind == _NO_ADDRESS:
            return f"the name of {called} does not resolve on {host}: check {option}"
        if opening and (isinstance(error, OSError) or kind == "WebSocketTimeoutException"):
            firewall = ""
            if called.endswith(f":{_AMQP_PORT}") and self.endpoint is None:
                firewall = f", and whether the port is open from here: transportType={WEBSOCKET} uses {_WEBSOCKET_PORT}"
            why = getattr(error, "strerror", None) or str(error)
            return f"no connection could be made to {called} ({why}): check {option}{firewall}"
        return None

    def _server(self, namespace: str) -> tuple[str, str]:
        """Host and port of the server, and the option that names it."""
        default = _WEBSOCKET_PORT if self.websocket else _AMQP_PORT
        if self.endpoint is not None:
            return f"{self.endpoint[0]}:{self.endpoint[1] or default}", "customEndpointAddress"
        host = namespace if ":" in namespace and not self.websocket else f"{namespace.partition(':')[0]}:{default}"
        return host, "connectionString or fullyQualifiedNamespace"

    def _called(self, namespace: str) -> tuple[str, str]:
        """Host and port that this machine connects to, and the option that names it."""
        if self.proxy is not None:
            return f"the proxy {self.proxy.host}:{self.proxy.port}", "httpProxy"
        server, option = self._server(namespace)
        if self.websocket and ("https_proxy" in os.environ or "HTTPS_PROXY" in os.environ):
            # which of the two is called depends on no_proxy; the variable may hold a password
            return f"{server}, or the proxy that the environment names,", f"{option}, and https_proxy and no_proxy"
        return server, option


#: Straight to the hub's own address.
DIRECT = Network()

#: The options that make a `Network`, in the order of its fields.
OPTIONS = ("transportType", "httpProxy", "customEndpointAddress", "caFile", "allowPlaintextEmulator")


# --- options ---------------------------------------------------------------------------------------------------------


def _transport(given: str | None, *, proxied: bool) -> str:
    if given is None:
        return WEBSOCKET if proxied else AMQP
    found = next((each for each in (AMQP, WEBSOCKET) if each.lower() == given.lower()), None)
    if found is None:
        raise OptionError(f"option transportType={redacted(given)} is wrong: allowed is one of {AMQP}, {WEBSOCKET}")
    if proxied and found == AMQP:
        raise OptionError(
            f"transportType={AMQP} and httpProxy are both set: a proxy works with {WEBSOCKET} only, leave one out"
        )
    return found


def _endpoint(given: str) -> tuple[str, int | None]:
    text = re.sub(r"^sb://|/$", "", given)
    if not is_server(text):
        raise OptionError(f"option customEndpointAddress={redacted(given)} is wrong: allowed is {_ENDPOINT_FORM}")
    host, _, port = text.partition(":")
    return host, int(port) if port else None


def _plaintext_emulator(given: str) -> bool:
    try:
        return flag(given)
    except ValueError as allowed:
        raise OptionError(f"option allowPlaintextEmulator={redacted(given)} is wrong: allowed is {allowed}") from None


def is_server(text: str) -> bool:
    """Whether `text` is HOST or HOST:PORT, with a name or an IPv4 address as HOST."""
    match = re.fullmatch(f"{_HOST}(:(?P<port>[0-9]{{1,5}}))?", text)
    return match is not None and (match["port"] is None or 1 <= int(match["port"]) <= 65535)


def _proxy(given: str) -> Proxy:
    text = resolve_secret("httpProxy", given)
    visible = "(not shown, as it may hold a password)" if "@" in text or is_reference(given) else redacted(given)
    wrong = OptionError(f"option httpProxy={visible} is wrong: allowed is {_PROXY_FORM}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    host = parts.hostname or ""
    if parts.scheme != "http" or not re.fullmatch(_HOST, host) or not port or parts.path.strip("/") or parts.query:
        raise wrong
    if parts.username is not None and text == given:
        raise OptionError(f"option httpProxy holds a user or a password, which would be shown: write {REFERENCES}")
    user, password = (None if each is None else unquote(each) for each in (parts.username, parts.password))
    if password and not user:
        raise wrong
    return Proxy(host, port, user or None, password)


def _ca_file(given: str) -> str:
    """The path, once the file was read here: on executors it is read at the same path."""
    path = os.path.abspath(given)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        why = "it holds no certificates in PEM form"
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    else:
        return path
    raise OptionError(
        f"option caFile={redacted(given)} is wrong: {why}; allowed is the path of a PEM file of certificates"
    )


# --- TLS -------------------------------------------------------------------------------------------------------------


class _Context(ssl.SSLContext):
    """A client's context that limits the time of a handshake."""

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **settings: Any) -> ssl.SSLSocket:
        before = sock.gettimeout()
        if before is None:  # the client would wait for ever
            sock.settimeout(_STEP)
        with sock:  # the client has this one until the handshake is over: shut down, it ends that
            wrapped = super().wrap_socket(sock.dup(), *arguments, **settings)
        wrapped.settimeout(before)
        return wrapped


@functools.lru_cache(4)
def _context(path: str, _: tuple[int, int]) -> ssl.SSLContext:
    """One for all connections of the process, as long as the file is the same: to read certifi's takes more time than
    the rest of opening a connection. Strictness is that of the client's own context."""
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    return context


# --- errors ----------------------------------------------------------------------------------------------------------


#: Where the client's errors keep what has caused them.
_CAUSES = ("error", "details", "inner_exception")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what has caused it, the first cause first."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if any(each is known for known in found):
            continue
        found.append(each)
        causes = (each.__context__, each.__cause__, *each.args, *(getattr(each, name, None) for name in _CAUSES))
        waiting += [cause for cause in causes if isinstance(cause, BaseException)]
    yield from reversed(found)


def _status(error: BaseException) -> int | None:
    """The HTTP status in the text of an error."""
    found = re.search(r"status:? (\d{3})\b", str(error))
    return int(found[1]) if found else None
