"""`ehbalance metrics`: whole groups for Prometheus, from their lease tables alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from spark_ehbalance.errors import StoreError
from spark_ehbalance.lease_table import contract as base
from spark_ehbalance.lease_table.viewing import Viewer
from spark_ehbalance.metrics.definitions import STORE_AVAILABLE, Sample, sample
from spark_ehbalance.metrics.prometheus import Server, need_prometheus
from spark_ehbalance.metrics.table import view_samples
from spark_ehbalance.ops.arguments import StorageOptions
from spark_ehbalance.ops.common import warn


def metrics(
    lease_table: Annotated[list[str], typer.Argument(help="Paths or addresses of lease tables.")],
    storage: StorageOptions,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of /metrics.")] = 9464,
    host: Annotated[str, typer.Option(help="Its address; 0.0.0.0 is open to the network.")] = "127.0.0.1",
) -> None:
    """Serve the metrics of whole groups to Prometheus until Ctrl-C, from their lease tables and histories.

    Each scrape looks at each table once.
    """
    need_prometheus("ehbalance metrics")
    with ExitStack() as stores:
        watched = [WatchedTable(stores.enter_context(storage.open(each, needs_members=True))) for each in lease_table]
        tables = Tables(watched)
        server = Server(host, port, tables.samples)
        server.start()
        stores.callback(server.close)
        typer.echo(f"Serving http://{host}:{port}/metrics. Ctrl-C ends it.", err=True)
        threading.Event().wait()


class WatchedTable:
    """The group in `store`, read at each scrape."""

    def __init__(self, store: base.LeaseTable) -> None:
        """Raises `StoreError` if it cannot be read."""
        self._viewer = Viewer(store)
        self._group = str(self._viewer.view().snapshot.group)
        self._away = False

    def samples(self) -> Iterator[Sample]:
        """The samples as of now, or only that the table is away."""
        try:
            view = self._viewer.view()
        except StoreError as error:
            if not self._away:
                warn(str(error))
            self._away = True
            yield sample(STORE_AVAILABLE, 0, self._group, "")
            return
        self._away = False
        yield from view_samples(view)


class Tables:
    """Several of them. One thread at a time may ask a store, and scrapes may overlap."""

    def __init__(self, tables: Sequence[WatchedTable]) -> None:
        self._tables = tables
        self._lock = threading.Lock()

    def samples(self) -> list[Sample]:
        """What all of them say now."""
        with self._lock:
            return [each for table in self._tables for each in table.samples()]
