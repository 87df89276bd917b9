"""Make the format known to a Spark session, and add the listener."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import weakref
from typing import Any

from pyspark.sql import SparkSession

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark.datasource import EhBalanceDataSource
from spark_ehbalance.spark.listener import BatchEndListener
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause, remote

#: Options with which the format can be looked up: valid ones, as it checks them. Nothing is read.
_LOOK_UP = {"fullyQualifiedNamespace": "namespace.servicebus.windows.net", "eventHubName": "hub"}

#: The listener of each session, which needs no second one, as when a notebook's cell is run again.
_listeners = weakref.WeakKeyDictionary[SparkSession, BatchEndListener]()


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and add a listener for its queries.

    Registration is needed if the package came by `--py-files`, `--archives` or `addArtifacts`. The listener reports
    each batch's end to the query's planner; without it, and with Spark Connect, checkpoints and handovers wait for the
    next trigger. It also ends a query whose sink has later batches than its checkpoint.

    Raises `EhBalanceError` if the driver's Python, with Spark Connect the server's, cannot import the package.
    """
    _make_known(spark)
    if remote(spark) is None:
        _listen(spark)


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
    """Add the session's listener, or add it again where a program may have removed it."""
    if spark in _listeners:
        spark.streams.removeListener(_listeners[spark])
    else:
        _listeners[spark] = BatchEndListener(spark)
    spark.streams.addListener(_listeners[spark])
