"""`ehbalance dashboard`: groups on a page, while they run."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from typing import Annotated

import typer

from spark_ehbalance.cli.common import say
from spark_ehbalance.cli.options import StorageOptions
from spark_ehbalance.errors import EhBalanceError, OptionError

#: Seconds for a look that is under way at the end.
_PATIENCE = 1.0


def dashboard(
    lease_tables: Annotated[list[str], typer.Argument(help="Paths or addresses of the groups' lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: a free one.")] = 8480,
) -> None:
    """Show groups on a web page that this machine alone can open: owners, lag, moves, reasons, members. Ctrl-C ends it.

    It writes nothing. The lag of the last hour is kept in memory, from the start of the command on.
    """
    if not 0 <= port <= 65535:
        raise OptionError(f"--port {port}: allowed are 0 to 65535")
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise EhBalanceError("the page needs starlette and uvicorn: pip install 'spark-ehbalance[dashboard]'")
    from spark_ehbalance.dashboard.board import Board
    from spark_ehbalance.dashboard.server import listening, serve
    from spark_ehbalance.dashboard.watcher import Watcher

    tables = [*dict.fromkeys(lease_tables)]
    with contextlib.ExitStack() as opened:
        stores = [opened.enter_context(storage.open(table)) for table in tables]
        try:
            listener = opened.enter_context(listening(port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise EhBalanceError(f"--port {port} cannot be used: {why}; --port 0 takes a free one") from None
        board = Board(tables)
        watchers = [Watcher(number, store, board) for number, store in enumerate(stores)]
        for watcher in watchers:
            watcher.start()
        host, used = listener.getsockname()
        say(f"Dashboard: http://{host}:{used}/ (Ctrl-C ends it)")
        serve(board, listener)
        for watcher in watchers:
            watcher.join(_PATIENCE)
