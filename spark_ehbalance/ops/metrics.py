"""`ehbalance metrics`: whole groups for Prometheus, from their lease tables alone."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from spark_ehbalance.lease_table.viewing import Viewer
from spark_ehbalance.metrics.prometheus import Server, need_prometheus
from spark_ehbalance.metrics.table import view_samples
from spark_ehbalance.ops.arguments import StorageOptions


def metrics(
    lease_table: Annotated[list[str], typer.Argument(help="Paths or addresses of lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of /metrics.")] = 9464,
    host: Annotated[str, typer.Option(help="Its address; 0.0.0.0 is open to the network.")] = "127.0.0.1",
) -> None:
    """Serve the metrics of whole groups to Prometheus until Ctrl-C, from their lease tables and histories.

    Each table is read once a second at most.
    """
    need_prometheus("ehbalance metrics")
    with ExitStack() as stores:
        viewers = [Viewer(stores.enter_context(storage.open(each, needs_members=True))) for each in lease_table]
        for viewer in viewers:
            viewer.latest()  # an error ends the command
        server = Server(host, port, lambda: [each for viewer in viewers for each in view_samples(viewer.latest())])
        server.start()
        stores.callback(server.close)
        typer.echo(f"Serving http://{host}:{port}/metrics. Ctrl-C ends it.", err=True)
        threading.Event().wait()
