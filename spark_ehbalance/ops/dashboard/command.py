"""`ehbalance dashboard`: shows groups on a web page of this machine, live or saved as one file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.metrics.http_server import HttpServer, Response
from spark_ehbalance.ops.arguments import StorageOptions
from spark_ehbalance.ops.common import echo
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


def dashboard(
    lease_tables: Annotated[list[str], typer.Argument(help="The groups' lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 chooses a free one.")] = 8480,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the current page to this HTML file and exit.")
    ] = None,
) -> None:
    """Show groups on a web page that can be opened only on this machine.

    The page shows owners, lag, findings, members and moves. Press Ctrl-C to stop the command. A saved page needs no
    network.
    """
    with contextlib.ExitStack() as opened:
        viewers = {table: Viewer(opened.enter_context(storage.open(table))) for table in lease_tables}
        if save is not None:
            groups = [facts(table, viewer.latest()) for table, viewer in viewers.items()]
            try:
                save.write_text(page(groups), encoding="utf-8")
            except OSError as error:
                raise EhBalanceError("EHB_FILE_NOT_WRITTEN", file=save, reason=error.strerror) from None
            echo(f"Saved as {save}.", err=True)
            return
        try:
            server = opened.enter_context(page_server([*viewers.items()], port))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise EhBalanceError("EHB_PORT_UNAVAILABLE", address=f"--port {port}", reason=reason) from None
        echo(f"Dashboard: http://{ADDRESS}:{server.server_port}/ (press Ctrl-C to stop)")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
