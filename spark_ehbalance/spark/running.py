"""Wait for queries to end, and stop them gracefully on SIGTERM or SIGINT."""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.dependencies import Py4JError, Py4JJavaError
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark.display import Display
from spark_ehbalance.spark.planners import process_id, request_from_planners
from spark_ehbalance.spark.run_statistics import RunStatistics
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause, remote
from spark_ehbalance.spark.signals import StopSignals
from spark_ehbalance.spark.stopping import hand_over

#: Seconds between two updates of the display.
_INTERVAL = 0.5

#: Seconds that Spark has to end a query whose batch was aborted (its `foreachBatch` function may never return) and to
#: call its listeners.
_GRACE = 2.0


def run(*queries: StreamingQuery, timeout: float = 25.0) -> None:
    """Wait for all `queries` to end; on SIGTERM or SIGINT (Ctrl-C), stop them as `stop` does.

    The function then returns, so the program ends with exit code 0. Batches still running `timeout` seconds after the
    signal are aborted; the default suits a process that is killed after 30 s. A second signal raises `SystemExit` with
    code 128 + its number. Call `run` in the main thread. In a terminal, it displays the owned partitions, the
    number of events read, and the lag; otherwise, it logs them.

    If a query fails, `run` stops the others and raises the query's exception. Raises `EhBalanceError` if no query is
    passed, or if the JVM is lost.
    """
    if not queries:
        problem = "it needs at least one query, as returned by start() or toTable()"
        raise EhBalanceError("EHB_CALL_INVALID", function="run", problem=problem)
    jvm = None if remote(getattr(queries[0], "_session", None)) is not None else _context()._jvm
    try:
        _run(queries, timeout, jvm)
    except (Py4JError, OSError) as error:
        if jvm is None or isinstance(error, Py4JJavaError) or _is_alive(jvm):
            raise
        raise EhBalanceError("EHB_DRIVER_LOST", reason=cause(error)) from error


def _run(queries: Sequence[StreamingQuery], timeout: float, jvm: Any) -> None:
    watched = [_Watched(query) for query in queries]
    with Display([query.name for query in watched]) as display, StopSignals(jvm).received() as signals:
        stops: list[threading.Thread] = []
        deadline = float("inf")
        while any(query.handle.isActive for query in watched) and time.monotonic() < deadline:
            display.show([query.update() for query in watched])
            number = signals.wait(_INTERVAL)
            failed = next((query for query in watched if query.has_failed()), None)
            if number is not None and stops:
                display.show_message(f"received {_name(number)}: ending now; unfinished batches will be read again")
                _end_now(queries)
                if jvm is not None:
                    atexit.register(_mute)
                sys.exit(128 + number)
            if stops or (number is None and failed is None):
                continue
            reason = f"query {failed.name} failed" if failed else _name(number or 0)
            display.show_message(
                f"{reason}: waiting up to {timeout:g} s for the batch to end; a second signal aborts it"
            )
            deadline = time.monotonic() + timeout + _GRACE
            stops = [threading.Thread(target=query.stop, args=(timeout, display), daemon=True) for query in watched]
            for thread in stops:
                thread.start()
        for thread in stops:
            thread.join(max(0.0, deadline - time.monotonic()))
        # With Spark Connect, the planner may receive the request to leave only once the batch releases its core.
        _end_now([query.handle for query in watched if query.handle.isActive])
        display.show([query.update() for query in watched], last=True)
        events = sum(query.statistics.events for query in watched)
        batches = sum(query.statistics.batches for query in watched)
        in_batches = f"{batches:,} batch{'' if batches == 1 else 'es'}"
        display.show_message(f"{'stopped' if stops else 'ended'} after {events:,} events in {in_batches}")
    if jvm is not None:
        _deliver_events()
    for query in watched:
        # A stopped query whose `foreachBatch` function does not return is inactive but never terminates.
        if query.has_failed() or not stops:
            query.handle.awaitTermination()  # raises the query's error


def _is_alive(jvm: Any) -> bool:
    try:
        process_id(jvm)
    except (Py4JError, OSError):
        return False
    return True


class _Watched:
    """A query and its statistics."""

    def __init__(self, query: StreamingQuery) -> None:
        self.handle = query
        self.name = query.name or str(query.id)[:8]
        self.statistics = RunStatistics(time.monotonic())

    def update(self) -> RunStatistics:
        """Update the statistics from Spark and the planners."""
        now = time.monotonic()
        with contextlib.suppress(*SPARK_ERRORS):
            newest: Any = self.handle.lastProgress
            if newest is None:
                self.statistics.update(self.handle.status["message"], [])
                return self.statistics
            before = self.statistics.newest_batch
            missed = before is not None and newest.batchId > before + 1
            reports: list[Any] = list(self.handle.recentProgress) if missed or before is None else [newest]
            for report in reports:
                self.statistics.add(json.loads(report.json), now)
            self.statistics.update("", request_from_planners(self.handle, newest, {"state": True}))
        return self.statistics

    def has_failed(self) -> bool:
        """Whether the query ended with an error."""
        return not self.handle.isActive and self.handle.exception() is not None

    def stop(self, timeout: float, display: Display) -> None:
        """Stop the query, and show the result."""
        with contextlib.suppress(*SPARK_ERRORS):
            if hand_over(self.handle, timeout):
                display.show_message("the batch has finished, and all partitions have been handed over", self.name)
            elif self.handle.isActive:
                display.show_message(
                    f"the batch did not end within {timeout:g} s: aborting it; its events will be read again", self.name
                )
            self.handle.stop()


def _end_now(queries: Sequence[StreamingQuery]) -> None:
    """Abort the batches, without waiting for `foreachBatch` functions that do not return."""
    threads = [threading.Thread(target=query.stop, daemon=True) for query in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_GRACE / len(threads))


def _deliver_events() -> None:
    """Wait until the listeners have been notified that the queries ended; otherwise the JVM prints a 40-line stack
    trace at exit."""
    with contextlib.suppress(*SPARK_ERRORS):
        _context()._jsc.sc().listenerBus().waitUntilEmpty(round(_GRACE * 1000))


def _mute() -> None:
    """Suppress the JVM's messages at exit about an aborted `foreachBatch` function."""
    with contextlib.suppress(*SPARK_ERRORS, OSError):
        _context().setLogLevel("OFF")


def _context() -> Any:
    from pyspark import SparkContext  # a Spark Connect client has no SparkContext

    return SparkContext._active_spark_context


def _name(number: int) -> str:
    return signal.Signals(number).name
