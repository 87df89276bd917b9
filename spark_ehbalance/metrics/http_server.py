"""The HTTP server of the metrics and of the dashboard: few connections, each with a deadline."""

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

#: Connections at once. Prometheus and browsers need fewer than ten; a process may often have only 1,024 files.
MOST_CONNECTIONS = 32

#: Seconds for a whole request, and for the peer to take the answer.
_PATIENCE = 10.0


class Answer(NamedTuple):
    """The response to a request; `kind` is the content type."""

    code: int
    kind: str = "text/plain; charset=utf-8"
    content: bytes = b""


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """On the loopback address only requests by this machine's name are answered: a foreign site could point its own
        name here (DNS rebinding)."""
        names = self.server.names
        if names and self.headers.get("Host", "") not in names:
            answer = Answer(400, content=f"allowed are requests to {' and '.join(names)}\n".encode())
        else:
            answer = self.server.answer(self.path)
        self.send_response(answer.code)
        headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.content)), **self.server.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.note_request(self.connection)
        return parsed

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class HttpServer(ThreadingHTTPServer):
    """Answers GET requests to `host` and `port` (0: a free one) by `answer`, which takes the path. Raises `OSError` if
    the address cannot be used.

    Beyond `MOST_CONNECTIONS` the oldest connection without a whole request is closed for a new one, so that peers that
    send nothing, or a byte now and then, keep nobody out.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted

    def __init__(
        self, host: str, port: int, answer: Callable[[str], Answer], headers: Mapping[str, str] | None = None
    ) -> None:
        self.answer, self.headers = answer, headers or {}
        #: The hosts to which requests are answered; none: to any.
        self.names: tuple[str, ...] = ()
        self._free = threading.Condition()
        self._open: dict[socket.socket, float | None] = {}  # the deadline of the request, None once it has come
        self._is_crowded = False
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        bound = str(self.server_address[0])
        if ipaddress.ip_address(bound).is_loopback:
            shown = f"[{bound}]" if ":" in bound else bound
            self.names = tuple(f"{name}:{self.server_port}" for name in (shown, "localhost"))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._free:
            if len(self._open) >= MOST_CONNECTIONS and not self._is_crowded:
                self._is_crowded = True
                _LOG.warning(
                    "more than %d connections to %s:%d at once: the oldest ones are closed",
                    MOST_CONNECTIONS, *self.server_address[:2],
                )  # fmt: skip
            if len(self._open) >= MOST_CONNECTIONS:
                waiting = (each for each, deadline in self._open.items() if deadline is not None)
                _hang_up(next(waiting, next(iter(self._open))))
            if not self._free.wait_for(lambda: len(self._open) < MOST_CONNECTIONS, _PATIENCE):
                raise ConnectionError("too many connections are being answered")
            self._open[request] = time.monotonic() + _PATIENCE
        super().process_request(request, client_address)

    def note_request(self, connection: socket.socket) -> None:
        """The whole request has come over `connection`."""
        with self._free:
            self._open[connection] = None

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._free:
            self._open.pop(request, None)
            self._free.notify()

    def service_actions(self) -> None:
        """Close connections whose request has not come in time; called twice a second."""
        with self._free:
            for connection, deadline in self._open.items():
                if deadline is not None and time.monotonic() > deadline:
                    _hang_up(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # not a connection that ended early
            _LOG.exception("a request was not answered")


def _hang_up(connection: socket.socket) -> None:
    """End a connection for the thread that reads from it, which then closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
