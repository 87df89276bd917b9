"""Functions for driver programs: register the format, and stop a query without duplicates."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.installed import Py4JError
from spark_ehbalance.source.batch_numbers import check_batch_numbers
from spark_ehbalance.source.control_socket import Answer, PlannerAddress, send
from spark_ehbalance.source.datasource import EhBalanceDataSource
from spark_ehbalance.source.error_line import repeat_at_the_end
from spark_ehbalance.source.offsets import StreamOffset
from spark_ehbalance.source.relay import PlannerRelay, relay
from spark_ehbalance.spark_versions import UNIX_SOCKET, UNIX_SOCKET_SINCE, minor_version
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Options with which the format can be looked up: valid ones, as it checks them. Nothing is read.
_LOOK_UP = {"fullyQualifiedNamespace": "namespace.servicebus.windows.net", "eventHubName": "hub"}

#: What is raised for errors of Spark; py4j's for those that pyspark does not know, such as an unknown format.
_SPARK_ERRORS = (PySparkException, Py4JError)

#: The sessions in which `PlannerRelay` is registered.
_with_relay = weakref.WeakSet[SparkSession]()

#: The listener of each session, which needs no second one, as when a notebook's cell is run again.
_listeners = weakref.WeakKeyDictionary[SparkSession, "BatchEndListener"]()

#: Seconds for a Spark Connect server to add a listener: it takes one request, maybe of a server with much else to do.
_LISTENS_WITHIN = 60.0

#: Seconds between two reports of one query that take a job each: they only help queries with longer triggers.
_RELAY_INTERVAL = 5.0


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and report each batch's end to its query's lease keeper at once.

    Needed where the package came by `--py-files`, `--archives` or `addArtifacts`, and for queries with a long
    processing-time trigger: else checkpoints and handovers wait for the next trigger. A query whose sink has later
    batches than its checkpoint (Spark's file sink, Delta's own) then ends before it reads anything; not with Spark
    Connect. Exceptions of Spark that are due to this package then end with the line that says why.

    `spark` may be a Spark Connect session, whose server then needs the package. Raises `EhBalanceError` if its Python
    cannot import it, and if the server does not add a listener.
    """
    _make_known(spark)
    if spark not in _listeners:
        _mention_unix_socket(spark)
    _listen(spark)
    repeat_at_the_end()


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop `query` without duplicates: its sources claim no more partitions, the running batch ends and is
    checkpointed, the partitions are released, and then the query is stopped.

    `query.stop()` alone interrupts the running batch, and the next owners read its events again. After `timeout`
    seconds the query is stopped in any case.
    """
    deadline = time.monotonic() + timeout
    spark = _remote(getattr(query, "_session", None))
    driver = 0 if spark is not None else _driver_of_this_process()
    while query.isActive and time.monotonic() < deadline:
        progress: Any = query.lastProgress
        # The planners' addresses are not known before the end of the first batch, which Spark runs in any case. An
        # answer tells whether all partitions are released; it is None if the planner is gone.
        ends = list(_ends(json.loads(progress.json))) if progress else None
        if ends is not None and False not in [_report_end(end, driver, spark, leave=True) for end in ends]:
            break
        time.sleep(0.1)
    query.stop()


class BatchEndListener(StreamingQueryListener):
    """Reports the end of each batch to the planners of its `ehbalance` sources, and whether two of them share leases;
    warns of sinks that lose rows if queries share a hub, and ends queries whose sink has later batches."""

    def __init__(self, spark: Any = None) -> None:
        """`spark` is the session of the queries; None: nothing is asked of it."""
        super().__init__()
        self._remote = _remote(spark)
        local: Any = spark if self._remote is None else None
        self._jvm: Any = local and local._jvm
        self._session: Any = local and local._jsparkSession
        self._driver = 0 if self._jvm is None else _process_id(self._jvm)
        self._relayed: dict[str, float] = {}
        self._warned: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._jvm is not None:  # then Spark waits for this before it reads the query's log
            check_batch_numbers(self._jvm, self._session, str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        ends = list(_ends(progress))
        groups = Counter(end.group for end in ends if end.group)
        cores = self._cores() if ends else None
        for end in ends:
            _report_end(end, self._driver, self._relay_for(end), twice=groups[end.group] > 1, cores=cores)
        if progress["id"] not in self._warned and (warning := _sink_warning(progress, ends)):
            self._warned.add(progress["id"])
            _LOG.warning(warning)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _cores(self) -> int | None:
        """How many tasks Spark runs at the same time; executors may have come or gone."""
        if self._session is None:
            return None
        cores: int = self._session.sparkContext().defaultParallelism()
        return cores

    def _relay_for(self, end: StreamOffset) -> SparkSession | None:
        """The session by which this report may be relayed."""
        now = time.monotonic()
        if now - self._relayed.get(end.lineage, -_RELAY_INTERVAL) < _RELAY_INTERVAL:
            return None
        self._relayed[end.lineage] = now
        return self._remote


def _remote(spark: Any) -> SparkSession | None:
    """`spark` if it is a session of Spark Connect, whose driver may be on another machine."""
    return spark if spark is not None and not hasattr(spark, "_jvm") else None


def _make_known(spark: SparkSession) -> None:
    """Register the format unless Spark knows it, as Spark warns of a second time.

    Raises `EhBalanceError` if the Python that Spark starts beside the driver cannot use it.
    """
    error = _use(spark)
    if error is None:
        return
    with contextlib.suppress(*_SPARK_ERRORS):  # found by Spark, but it cannot be used
        spark.dataSource.register(EhBalanceDataSource)  # maybe again: the package may have been added since
        error = _use(spark)
    if error is not None:
        raise EhBalanceError(
            f"Spark cannot use the format {EhBalanceDataSource.name()!r}: {_cause(error)}. {_remedy(spark)}"
        ) from error


def _mention_unix_socket(spark: SparkSession) -> None:
    if minor_version(spark.version) >= UNIX_SOCKET_SINCE and spark.conf.get(UNIX_SOCKET, "false") != "true":
        _LOG.info(
            "%s is off: with it batches of some 100,000 events are read in three quarters of the time. It is set "
            "before Spark starts, as by spark_ehbalance.delta.spark_settings()",
            UNIX_SOCKET,
        )


def _use(spark: SparkSession) -> Exception | None:
    """Have the driver's Python use the format; returns why it cannot."""
    try:
        _ = spark.read.format(EhBalanceDataSource.name()).options(**_LOOK_UP).load().schema
    except _SPARK_ERRORS as error:
        return error
    return None


def _remedy(spark: Any) -> str:
    """What to do where Spark's Python cannot use the format."""
    remedy = (
        "The Python that Spark starts beside the driver needs the package spark-ehbalance and what that depends on: "
        "install both there, or bring them by --archives or --py-files (a wheel under the name of a .zip), with Spark "
        "Connect by spark.addArtifacts (docs/platforms.md)"
    )
    if _remote(spark) is not None:
        here = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
        return f"{remedy}. For a server on this machine, before it starts: {here}"
    name = spark.sparkContext.pythonExec
    python = os.path.abspath(shutil.which(name, path=spark._jvm.System.getenv("PATH")) or name)
    # Not by the file: those of virtual environments are links to one and the same.
    if os.path.dirname(python) == os.path.dirname(sys.executable):
        return remedy
    why = "which PYSPARK_PYTHON names"
    if "PYSPARK_PYTHON" not in os.environ:
        why = f"the {name} of the PATH, as PYSPARK_PYTHON is not set"
    found = f"Spark's Python is {python}, {why}; this program's is another"
    if not spark.sparkContext.master.startswith("local"):
        return f"{found}. {remedy}"
    return f"{found}. Before you start it: export PYSPARK_PYTHON={shlex.quote(sys.executable)}"


def _cause(error: Exception) -> str:
    """The last line of what Python has said, else the first one of what Spark has."""
    lines = [line.strip() for line in str(error).partition("\nJVM stacktrace")[0].splitlines()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        return [line for line in lines if line and not line.startswith(("SQLSTATE", "at "))][-1]
    if isinstance(error, Py4JError) and len(lines) > 1:  # the first line is py4j's own
        return lines[1].removeprefix(": ")
    return lines[0]


def _listen(spark: SparkSession) -> None:
    """On Spark Connect a thread waits for events, and Python waits at its end for all threads but daemons, which a
    thread that a daemon has started is."""
    before = _listeners.get(spark)
    listener = _listeners[spark] = before or BatchEndListener(spark)
    if _remote(spark) is None:
        if before is not None:
            spark.streams.removeListener(before)
        spark.streams.addListener(listener)
        return
    if before is not None:
        return
    # With its next answer the server sends what the Pythons that it has started have counted. A listener's thread ends
    # at that, with UNKNOWN_RESPONSE (seen with 4.2.0).
    spark.range(0).collect()
    adding = threading.Thread(target=_add_listener, args=(spark, listener), name="ehbalance-listen", daemon=True)
    adding.start()
    adding.join(_LISTENS_WITHIN)
    if adding.is_alive():  # with the lock of the client's listeners, for which the start of a query would wait too
        del _listeners[spark]
        raise EhBalanceError(
            f"the Spark Connect server has not added a listener within {_LISTENS_WITHIN:g} s, so that this session can "
            "start no queries any more: connect with a new session, without session_id or with another one"
        )


def _driver_of_this_process() -> int:
    from pyspark import SparkContext  # a client of Spark Connect has none

    return _process_id(SparkContext._jvm)


def _process_id(jvm: Any) -> int:
    pid: int = jvm.java.lang.ProcessHandle.current().pid()
    return pid


def _add_listener(spark: Any, listener: StreamingQueryListener) -> None:
    """Add the first listener of this client.

    In a session of an earlier client, which is named by its id, the server keeps that one's listener, and would never
    answer a second one (seen with 4.2.1): so it forgets that first. In a new session it would log an error.
    """
    if spark.client._builder.session_id is not None and not spark.streams._sqlb._listener_bus:
        from pyspark.sql.connect import proto

        command = proto.Command()
        command.streaming_query_listener_bus_command.remove_listener_bus_listener = True
        spark.client.execute_command(command)
    spark.streams.addListener(listener)


def _report_end(
    end: StreamOffset, driver: int, remote: SparkSession | None = None, **more: bool | int | None
) -> Answer | None:
    """Report to its planner, beside the JVM with the process id `driver`, that the sink has finished the batch that
    ends at `end`, through the session `remote` if it is on another machine; `more` is as for `Planner.handle`. Returns
    the planner's answer, or None."""
    message = {"finished": end.to_json(), **more}
    answer = send(PlannerAddress(end.lineage, driver), message)
    if answer is None and remote is not None:
        try:
            if remote not in _with_relay:
                remote.dataSource.register(PlannerRelay)
                _with_relay.add(remote)
            answer = relay(remote, end.lineage, message)
        except _SPARK_ERRORS as error:
            _LOG.warning("the query's planner cannot be told that a batch has ended: %s", _cause(error))
    return answer


def _sink_warning(progress: dict[str, Any], ends: list[StreamOffset]) -> str | None:
    """The warning for a query that has a lease table and writes with Spark's file sink; None for others."""
    sink = progress["sink"]["description"]
    if not sink.startswith("FileSink[") or not any(end.group for end in ends):
        return None
    return (
        f"query {progress['name'] or progress['id']} has a lease table and writes plain files, {sink}: if several "
        "queries write into one folder, each skips the batches whose number another has written, and rows are lost; "
        "write Delta, or give each query a folder of its own"
    )


def _ends(progress: dict[str, Any]) -> Iterator[StreamOffset]:
    """The end offset of each of our sources in a progress report."""
    for source in progress["sources"]:
        end = source.get("endOffset")
        with contextlib.suppress(EhBalanceError, ValueError):  # of another source
            yield StreamOffset.from_json(json.loads(end) if isinstance(end, str) else end)
