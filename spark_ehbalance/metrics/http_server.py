"""The HTTP server for metrics and the dashboard. Connections are limited in number and in time."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum number of concurrent connections. Prometheus and browsers need fewer than ten, and a process can often open
#: only 1,024 files.
MAX_CONNECTIONS = 32

#: Time limit in seconds for the peer to send a request, and again for it to receive the response.
_TIMEOUT = 10.0


class Response(NamedTuple):
    """The response to a request."""

    code: int
    content_type: str = "text/plain; charset=utf-8"
    content: bytes = b""


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        """Respond. On the loopback address, accept only requests whose Host header names this machine, because a
        malicious site could point its own name here (DNS rebinding)."""
        hosts = self.server.allowed_hosts
        if hosts and self.headers.get("Host", "") not in hosts:
            response = Response(400, content=f"The Host header must be {' or '.join(hosts)}.\n".encode())
        else:
            response = self.server.respond(self.path)
        self.send_response(response.code)
        content_length = str(len(response.content))
        headers = {"Content-Type": response.content_type, "Content-Length": content_length, **self.server.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.content)

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.note_request(self.connection)
        return parsed

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, so that requests are not logged."""


class HttpServer(ThreadingHTTPServer):
    """Responds to GET requests at `host` and `port` (0 chooses a free one) with `respond(path)`. Raises `OSError` if
    the address cannot be used.

    If there are more than `MAX_CONNECTIONS`, the oldest connection without a complete request is closed, so that idle
    and slow peers do not block others.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, respond: Callable[[str], Response], headers: Mapping[str, str] | None = None
    ) -> None:
        self.respond, self.headers = respond, headers or {}
        #: Allowed Host headers; if empty, all are allowed.
        self.allowed_hosts: tuple[str, ...] = ()
        self._free = threading.Condition()
        self._open: dict[
            socket.socket, float | None
        ] = {}  # the deadline for the request; None once it has been received
        self._is_crowded = False
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        bound = str(self.server_address[0])
        if ipaddress.ip_address(bound).is_loopback:
            host_name = f"[{bound}]" if ":" in bound else bound
            self.allowed_hosts = tuple(f"{name}:{self.server_port}" for name in (host_name, "localhost"))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._free:
            if len(self._open) >= MAX_CONNECTIONS and not self._is_crowded:
                self._is_crowded = True
                _LOG.warning(
                    "too many connections, closing the oldest: limit=%d address=%s:%d",
                    MAX_CONNECTIONS, *self.server_address[:2],
                )  # fmt: skip
            if len(self._open) >= MAX_CONNECTIONS:
                incomplete = (connection for connection, deadline in self._open.items() if deadline is not None)
                _shut_down(next(incomplete, next(iter(self._open))))
            if not self._free.wait_for(lambda: len(self._open) < MAX_CONNECTIONS, _TIMEOUT):
                raise ConnectionError("too many connections")
            self._open[request] = time.monotonic() + _TIMEOUT
        super().process_request(request, client_address)

    def note_request(self, connection: socket.socket) -> None:
        """Record that a complete request has arrived on `connection`."""
        with self._free:
            self._open[connection] = None

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._free:
            self._open.pop(request, None)
            self._free.notify()

    def service_actions(self) -> None:
        """Close connections whose request is overdue; called twice a second."""
        with self._free:
            for connection, deadline in self._open.items():
                if deadline is not None and time.monotonic() > deadline:
                    _shut_down(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a connection that ended early is not an error
            _LOG.exception("request failed")


def _shut_down(connection: socket.socket) -> None:
    """End a connection. The thread that reads from it then closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
