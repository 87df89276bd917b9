"""The HTTP server for metrics and the dashboard. Connections are limited in number, and idle ones in time."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum number of concurrent connections. Prometheus and browsers need fewer than ten, and a process can often open
#: only 1,024 files.
MAX_CONNECTIONS = 32

#: Seconds to wait for the peer's next bytes.
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

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, so that requests are not logged."""


class HttpServer(ThreadingHTTPServer):
    """Responds to GET requests at `host` and `port` (0 chooses a free one) with `respond(path)`. Raises `OSError` if
    the address cannot be used.

    Connections beyond `MAX_CONNECTIONS` are closed at once.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, respond: Callable[[str], Response], headers: Mapping[str, str] | None = None
    ) -> None:
        self.respond, self.headers = respond, headers or {}
        #: Allowed Host headers; if empty, all are allowed.
        self.allowed_hosts: tuple[str, ...] = ()
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        bound = str(self.server_address[0])
        if ipaddress.ip_address(bound).is_loopback:
            host_name = f"[{bound}]" if ":" in bound else bound
            self.allowed_hosts = tuple(f"{name}:{self.server_port}" for name in (host_name, "localhost"))

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            try:
                super().finish_request(request, client_address)
            finally:
                self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a connection that ended early is not an error
            _LOG.exception("request failed")
