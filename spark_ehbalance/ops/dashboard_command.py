"""`ehbalance dashboard`: groups on a web page, live or saved as one file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.lease_table.viewing import Viewer
from spark_ehbalance.ops.arguments import StorageOptions
from spark_ehbalance.ops.common import say
from spark_ehbalance.ops.dashboard.page import page
from spark_ehbalance.ops.dashboard.server import group_facts, made_server, run


def dashboard(
    lease_tables: Annotated[list[str], typer.Argument(help="Paths or addresses of the groups' lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: a free one.")] = 8480,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page as it is now to this HTML file, and end.")
    ] = None,
) -> None:
    """Show groups on a web page that this machine alone can open: owners, lag, findings, members, moves.

    Ctrl-C ends it. It writes nothing but the file of --save, which needs no network to be shown.
    """
    with contextlib.ExitStack() as opened:
        tables = [(each, Viewer(opened.enter_context(storage.open(each)))) for each in dict.fromkeys(lease_tables)]
        if save is not None:
            groups = [group_facts(*each) for each in tables]
            if problems := [each["problem"] for each in groups if "problem" in each]:
                raise EhBalanceError("; ".join(problems))
            try:
                save.write_text(page(groups), encoding="utf-8")
            except OSError as error:
                raise EhBalanceError(f"{save} could not be written: {error.strerror}") from None
            say(f"Saved as {save}.", err=True)
            return
        try:
            server = opened.enter_context(made_server(tables, port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise EhBalanceError(f"--port {port} cannot be used: {why}; --port 0 takes a free one") from None
        say(f"Dashboard: http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        run(server)
