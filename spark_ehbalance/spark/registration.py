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

#: Valid options, with which the format can be looked up without reading.
_LOOK_UP = {"fullyQualifiedNamespace": "namespace.servicebus.windows.net", "eventHubName": "hub"}

#: The listener of each session: a second one is not needed if a notebook's cell runs again.
_listeners = weakref.WeakKeyDictionary[SparkSession, BatchEndListener]()


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and add a listener for its queries.

    Registration is needed if the package came by `--py-files`, `--archives` or `addArtifacts`. The listener reports
    each batch's end to the query's planner; without it, and with Spark Connect, checkpoints and handovers wait for the
    next trigger. It also ends a query whose sink has later batches than its checkpoint.

    Raises `EhBalanceError` if the driver's Python, with Spark Connect the server's, cannot import the package.
    """
    _register_format(spark)
    if remote(spark) is None:
        _listen(spark)


def _register_format(spark: SparkSession) -> None:
    """Register the format unless Spark knows it, because Spark warns of a second registration.

    Raises `EhBalanceError` if the Python that Spark starts on the driver's machine cannot use it.
    """
    error = _use(spark)
    if error is None:
        return
    with contextlib.suppress(*SPARK_ERRORS):  # found by Spark, but unusable
        spark.dataSource.register(EhBalanceDataSource)  # again: the package may have been added since
        error = _use(spark)
    if error is not None:
        python = _describe_python(spark)
        raise EhBalanceError("EHB_FORMAT_UNUSABLE", reason=cause(error), python=python) from error


def _use(spark: SparkSession) -> Exception | None:
    """Use the format in the driver's Python; return the error, or None."""
    try:
        _ = spark.read.format(EhBalanceDataSource.name()).options(**_LOOK_UP).load().schema
    except SPARK_ERRORS as error:
        return error
    return None


def _describe_python(spark: Any) -> str:
    """Which Python Spark starts, and how to make it this program's."""
    export = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    if remote(spark) is not None:
        return f"Spark's Python is the server's; for a server on this machine, before it starts: {export}"
    name = spark.sparkContext.pythonExec
    python = os.path.abspath(shutil.which(name, path=spark._jvm.System.getenv("PATH")) or name)
    # Compare folders: the pythons of virtual environments are links to the same file.
    if os.path.dirname(python) == os.path.dirname(sys.executable):
        return f"Spark's Python is this program's, {python}"
    source = "set by PYSPARK_PYTHON"
    if "PYSPARK_PYTHON" not in os.environ:
        source = f"the first {name} on the PATH, as PYSPARK_PYTHON is not set"
    found = f"Spark's Python is {python} ({source}), this program's is {sys.executable}"
    return f"{found}: before it starts, {export}" if spark.sparkContext.master.startswith("local") else found


def _listen(spark: SparkSession) -> None:
    """Add the session's listener, or add it again where a program may have removed it."""
    if spark in _listeners:
        spark.streams.removeListener(_listeners[spark])
    else:
        _listeners[spark] = BatchEndListener(spark)
    spark.streams.addListener(_listeners[spark])
