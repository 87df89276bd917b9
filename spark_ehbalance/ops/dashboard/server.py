"""Serves the page of groups on the loopback address."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.lease_table.contract import LeaseTable
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

#: Seconds for which all viewers are shown the same look at a table, and for which a connection may say nothing.
_LOOK_INTERVAL, _PATIENCE = 1.0, 10.0


class WatchedTable:
    """The lease table at `location`, read at most once a second. Any thread may call it."""

    def __init__(self, location: str, store: LeaseTable) -> None:
        self._location, self._viewer = location, Viewer(store)
        self._lock = threading.Lock()
        self._view: GroupView | None = None
        self._facts: dict[str, Any] = {}
        self._until = 0.0

    def facts(self) -> dict[str, Any]:
        """What the page shows: the last view and why there is no newer one, if the table cannot be read."""
        with self._lock:
            if time.monotonic() >= self._until:
                problem = ""
                try:
                    self._view = self._viewer.view()
                except EhBalanceError as error:
                    problem = str(error)
                    self._view = self._view and replace(self._view, problem=problem)
                self._facts = facts(self._location, self._view, problem)
                self._until = time.monotonic() + _LOOK_INTERVAL
            return self._facts


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
            self._answer(200, "application/json", json.dumps(self.server.tables[int(number[1])].facts()))
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

    def __init__(self, tables: Sequence[WatchedTable], port: int) -> None:
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
