"""How long a query takes to its first events, and an event to the sink, where the hub has so many partitions that
asking about each takes long: one event a second in each.

Compared with a query without owner level, whose receivers are not kept: its tasks tell only what they have heard while
they read.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from bench.common import Log, Row, batches, emulator, start
from bench.latency import Producer, began, finished, latencies
from spark_ehbalance.hub.poll_schedule import MOST_REQUESTS

SUBJECT = "partitions"

_ASKED, _TOLD = "receivers not kept", "receivers kept"


def measure(spark: SparkSession, folder: Path, log: Log, *, partitions: int, seconds: float) -> Iterator[Row]:
    """A query of each kind under load for `seconds`, after as long as asking about each partition takes twice."""
    with emulator(1) as server:  # the first query of a session starts slowly
        server.append(0, [b"x"])
        options = {"connectionString": server.address, "startingPosition": "earliest"}
        start(spark, options, folder / "first", available_now=True).awaitTermination()
    warm_up = 2 * partitions / MOST_REQUESTS
    found: dict[str, tuple[float, float, float]] = {}
    for how in (_ASKED, _TOLD):
        log(f"{partitions} partitions, {how}: {warm_up + seconds:.0f} s")
        with emulator(partitions) as server:
            producer, stopped, run_folder = Producer(server.append, partitions), threading.Event(), folder / how
            options = {"connectionString": server.address, "startingPosition": "earliest"}
            options |= {"leaseTable": str(run_folder / "leases")} if how == _TOLD else {}
            producer.send(partitions)
            started = time.time()
            query = start(spark, options, run_folder)
            producing = threading.Thread(target=producer.run, args=(float(partitions), stopped))
            producing.start()
            try:
                stopped.wait(warm_up)
                since = time.time()
                stopped.wait(seconds)
                times = latencies([each for each in batches(query) if began(each) > since], producer)
            finally:
                stopped.set()
                producing.join()
                query.stop()
        first = finished(batches(query)[0]) - started
        found[how] = first, statistics.median(times), statistics.quantiles(times, n=20)[-1]
    for index, name in enumerate(("start to the first events in the sink", "event to sink, median", "the same, 95 %")):
        asked, told = found[_ASKED][index], found[_TOLD][index]
        what = f"{partitions:,} partitions, an event a second each: {name}"
        yield Row(SUBJECT, what, "s", (told,), None, {_ASKED: (asked,)})
