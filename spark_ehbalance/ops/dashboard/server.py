"""Serves the page of groups on the loopback address."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.viewing import Viewer
from spark_ehbalance.ops.dashboard.page import POLICY, facts, page
from spark_ehbalance.text import logger

_LOG = logger(__name__)

ADDRESS = "127.0.0.1"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

#: Seconds after which a silent connection is closed.
_PATIENCE = 10.0


def group_facts(location: str, viewer: Viewer) -> dict[str, Any]:
    """The page's facts of the group in the lease table at `location`."""
    try:
        return facts(location, viewer.latest())
    except EhBalanceError as error:
        return facts(location, None, str(error))


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answers only requests by this machine's name: a foreign site could point its own name here (DNS
        rebinding)."""
        port, number = self.server.server_port, re.fullmatch(r"/facts/(\d{1,6})", self.path)
        if self.headers.get("Host", "") not in {f"{ADDRESS}:{port}", f"localhost:{port}"}:
            self._answer(400, "text/plain", "")
        elif self.path == "/":
            self._answer(200, "text/html", page(len(self.server.tables)))
        elif number and int(number[1]) < len(self.server.tables):
            self._answer(200, "application/json", json.dumps(group_facts(*self.server.tables[int(number[1])])))
        else:
            self._answer(404, "text/plain", "")

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": len(content),
            **_HEADERS,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        with contextlib.suppress(OSError):  # the viewer is gone
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """The page of `tables` at `port`; 0: a free one. Raises `OSError` if the port is in use."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, tables: Sequence[tuple[str, Viewer]], port: int) -> None:
        self.tables = tables
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # not a connection that ended early
            _LOG.exception("a request was not answered")

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()
