"""Make the format known to a Spark session, and add the listener."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import threading
import weakref
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark.datasource import EhBalanceDataSource
from spark_ehbalance.spark.error_line import repeat_at_the_end
from spark_ehbalance.spark.listener import BatchEndListener
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause, remote
from spark_ehbalance.spark_versions import UNIX_SOCKET, UNIX_SOCKET_SINCE, minor_version
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Options with which the format can be looked up: valid ones, as it checks them. Nothing is read.
_LOOK_UP = {"fullyQualifiedNamespace": "namespace.servicebus.windows.net", "eventHubName": "hub"}

#: The listener of each session, which needs no second one, as when a notebook's cell is run again.
_listeners = weakref.WeakKeyDictionary[SparkSession, BatchEndListener]()

#: Seconds for a Spark Connect server to add a listener: it takes one request, maybe of a server with much else to do.
_LISTENS_WITHIN = 60.0


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and report each batch's end to its query's planner at once.

    Needed where the package came by `--py-files`, `--archives` or `addArtifacts`, and with a long processing-time
    trigger: otherwise checkpoints and handovers wait for the next trigger. A query whose sink has later batches than
    its checkpoint (Spark's file sink, Delta's own) ends before it reads anything; not with Spark Connect. Exceptions of
    Spark that this package caused end with the line of the cause.

    `spark` may be a Spark Connect session, whose server then needs the package. Raises `EhBalanceError` if Spark's
    Python cannot import it, or the server does not add a listener.
    """
    _make_known(spark)
    if spark not in _listeners:
        _mention_unix_socket(spark)
    _listen(spark)
    repeat_at_the_end()


def _make_known(spark: SparkSession) -> None:
    """Register the format unless Spark knows it, as Spark warns of a second time.

    Raises `EhBalanceError` if the Python that Spark starts beside the driver cannot use it.
    """
    error = _use(spark)
    if error is None:
        return
    with contextlib.suppress(*SPARK_ERRORS):  # found by Spark, but it cannot be used
        spark.dataSource.register(EhBalanceDataSource)  # maybe again: the package may have been added since
        error = _use(spark)
    if error is not None:
        raise EhBalanceError(
            f"Spark cannot use the format {EhBalanceDataSource.name()!r}: {cause(error)}. {_remedy(spark)}"
        ) from error


def _mention_unix_socket(spark: SparkSession) -> None:
    if minor_version(spark.version) >= UNIX_SOCKET_SINCE and spark.conf.get(UNIX_SOCKET, "false") != "true":
        _LOG.info(
            "%s is off: with it batches of some 100,000 events are read in three quarters of the time. It is set "
            "before Spark starts, as by spark_ehbalance.exactly_once.spark_settings()",
            UNIX_SOCKET,
        )


def _use(spark: SparkSession) -> Exception | None:
    """Have the driver's Python use the format; returns why it cannot."""
    try:
        _ = spark.read.format(EhBalanceDataSource.name()).options(**_LOOK_UP).load().schema
    except SPARK_ERRORS as error:
        return error
    return None


def _remedy(spark: Any) -> str:
    """What to do where Spark's Python cannot use the format."""
    remedy = (
        "The Python that Spark starts beside the driver needs the package spark-ehbalance and what that depends on: "
        "install both there, or bring them by --archives or --py-files (a wheel under the name of a .zip), with Spark "
        "Connect by spark.addArtifacts (docs/platforms.md)"
    )
    if remote(spark) is not None:
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


def _listen(spark: SparkSession) -> None:
    """On Spark Connect a thread waits for events, and Python waits at its end for all threads but daemons, which a
    thread that a daemon has started is."""
    before = _listeners.get(spark)
    listener = _listeners[spark] = before or BatchEndListener(spark)
    if remote(spark) is None:
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
