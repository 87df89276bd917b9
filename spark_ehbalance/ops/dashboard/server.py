"""HTTP server for the page of groups, on the loopback address."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Sequence
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.metrics.http_server import HttpServer, Response
from spark_ehbalance.ops.dashboard.page import POLICY, facts, page

ADDRESS = "127.0.0.1"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def group_facts(location: str, viewer: Viewer) -> dict[str, Any]:
    """Facts of the group in the lease table at `location`, for the page."""
    try:
        return facts(location, viewer.latest())
    except EhBalanceError as error:
        return facts(location, None, str(error))


def page_server(tables: Sequence[tuple[str, Viewer]], port: int) -> HttpServer:
    """A server for the page of `tables` at `port`; 0 chooses a free one. Raises `OSError` if the port is in use."""

    def answer(path: str) -> Response:
        number = re.fullmatch(r"/facts/(\d{1,6})", path)
        if path == "/":
            return Response(200, "text/html; charset=utf-8", page(len(tables)).encode())
        if number and int(number[1]) < len(tables):
            text = json.dumps(group_facts(*tables[int(number[1])]))
            return Response(200, "application/json; charset=utf-8", text.encode())
        return Response(404)

    return HttpServer(ADDRESS, port, answer, _HEADERS)


def run(server: HttpServer) -> None:
    """Serve until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
