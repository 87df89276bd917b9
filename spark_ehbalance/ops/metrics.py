"""`ehbalance metrics`: serves metrics of groups to Prometheus, using only their lease tables."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from spark_ehbalance.lease_table.viewer import Viewer
from spark_ehbalance.metrics.prometheus import MetricsServer, require_prometheus
from spark_ehbalance.metrics.table import view_samples
from spark_ehbalance.ops.arguments import StorageOptions


def metrics(
    lease_table: Annotated[list[str], typer.Argument(help="The groups' lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of /metrics.")] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 accepts connections from other machines.")
    ] = "127.0.0.1",
) -> None:
    """Serve metrics of groups to Prometheus until Ctrl-C.

    The metrics come only from the lease tables and their histories. Each table is read at most once a second.
    """
    require_prometheus("ehbalance metrics")
    with ExitStack() as stores:
        viewers = [Viewer(stores.enter_context(storage.open(table, needs_members=True))) for table in lease_table]
        for viewer in viewers:
            viewer.latest()  # an error ends the command
        server = MetricsServer(
            host, port, lambda: [sample for viewer in viewers for sample in view_samples(viewer.latest())]
        )
        server.start()
        stores.callback(server.close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # ignored by default in a container's first process
        typer.echo(f"Serving http://{host}:{port}/metrics. Press Ctrl-C to stop.", err=True)
        threading.Event().wait()
