"""`ehbalance dashboard`: shows groups on a web page, live or saved as one file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.ops.arguments import StorageOptions
from spark_ehbalance.ops.common import echo
from spark_ehbalance.ops.dashboard.page import facts, page
from spark_ehbalance.ops.dashboard.server import page_server, run


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
        echo(f"Dashboard: http://127.0.0.1:{server.server_port}/ (press Ctrl-C to stop)")
        run(server)
