"""Prometheus metrics of a query's process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from spark_ehbalance.clock import monotonic
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.metrics import definitions as of
from spark_ehbalance.metrics.definitions import Sample, by_label, sample
from spark_ehbalance.metrics.prometheus import MetricsServer
from spark_ehbalance.metrics.table import group_samples, member_samples, partition_samples
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.planner import Planner


def export_metrics(options: Options, planner: Planner) -> ExitStack:
    """Serve the query's metrics at `metricsPort` until the result is closed. If the port is in use, the query still
    runs, and its metrics are served once the port is free."""
    exporters = ExitStack()
    if options.metrics_port is not None:
        server = MetricsServer(options.metrics_host, options.metrics_port, partial(query_samples, planner))
        exporters.callback(server.close)
        server.start_when_free()
    return exporters


def query_samples(planner: Planner) -> Iterator[Sample]:
    """Metrics of the query, its owned partitions and its group; sends no request to the store or the hub."""
    keeper, hub, engine = planner.parts
    snapshot = keeper.snapshot
    if snapshot is None:
        return
    now, me = time.time(), (str(snapshot.group), planner.owner)
    if not keeper.is_store_unavailable:
        yield from group_samples(snapshot)
    if (row := snapshot.members.get(planner.owner)) is not None:
        yield from member_samples(snapshot, row)
    yield from partition_samples(snapshot, snapshot.owned_by(planner.owner), round(now * 1000))
    if (began := keeper.batch_began) is not None:
        yield sample(of.BATCH_START, now - (monotonic() - began), *me)
    counts = keeper.counts
    yield from (
        sample(metric, value, *me)
        for metric, value in (
            (of.COMMITS, counts.commits),
            (of.CONFLICTS, counts.lost),
            (of.EVENTS, engine.loads.events),
            (of.STORE_AVAILABLE, not keeper.is_store_unavailable),
            (of.HUB_AVAILABLE, hub.available),
            (of.BUSY, BUSY.count(hub.name)),
        )
    )
    yield from by_label(of.MOVES, counts.moves, *me)
