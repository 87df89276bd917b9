"""Register the format with a Spark session, and add the listener."""

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

#: Valid options that let Spark look up the format without reading anything.
_LOOK_UP = {"fullyQualifiedNamespace": "namespace.servicebus.windows.net", "eventHubName": "hub"}

#: Each session's listener, so that rerunning a notebook cell does not add a second one.
_listeners = weakref.WeakKeyDictionary[SparkSession, BatchEndListener]()


def register(spark: SparkSession) -> None:
    """Register `format("ehbalance")` with `spark`, and add a listener for its queries.

    Registration is needed if the package was added with `--py-files`, `--archives` or `addArtifacts`. The listener
    reports the end of each batch to the query's planner. Without it, as is always the case with Spark Connect,
    checkpoints and handovers wait for the next trigger. The listener also ends a query if its sink has later batches
    than its checkpoint.

    Raises `EhBalanceError` if the driver's Python (with Spark Connect, the server's) cannot import the package.
    """
    _register_format(spark)
    if remote(spark) is None:
        _listen(spark)


def _register_format(spark: SparkSession) -> None:
    """Register the format unless it is already registered, because Spark warns about a second registration.

    Raises `EhBalanceError` if the Python that Spark starts on the driver's machine cannot use it.
    """
    error = _use(spark)
    if error is None:
        return
    with contextlib.suppress(*SPARK_ERRORS):  # Spark may find the format but be unable to use it
        spark.dataSource.register(
            EhBalanceDataSource
        )  # register it again, because the package may have been added since
        error = _use(spark)
    if error is not None:
        python = _describe_python(spark)
        raise EhBalanceError("EHB_FORMAT_UNUSABLE", reason=cause(error), python_in_use=python) from error


def _use(spark: SparkSession) -> Exception | None:
    """Use the format in the driver's Python. Returns the error; None if there is none."""
    try:
        _ = spark.read.format(EhBalanceDataSource.name()).options(**_LOOK_UP).load().schema
    except SPARK_ERRORS as error:
        return error
    return None


def _describe_python(spark: Any) -> str:
    """Describe which Python Spark starts, and how to make Spark start this program's Python."""
    export = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    if remote(spark) is not None:
        return f"Spark uses the server's Python. If the server runs on this machine, run `{export}` before starting it"
    name = spark.sparkContext.pythonExec
    python = os.path.abspath(shutil.which(name, path=spark._jvm.System.getenv("PATH")) or name)
    # Compare folders, because the interpreters of virtual environments can be links to the same file.
    if os.path.dirname(python) == os.path.dirname(sys.executable):
        return f"Spark uses the same Python as this program, {python}"
    source = "set by PYSPARK_PYTHON"
    if "PYSPARK_PYTHON" not in os.environ:
        source = f"the first {name} on the PATH, as PYSPARK_PYTHON is not set"
    found = f"Spark uses {python} ({source}), but this program uses {sys.executable}"
    if not spark.sparkContext.master.startswith("local"):
        return found
    return f"{found}. Run `{export}` before starting the program"


def _listen(spark: SparkSession) -> None:
    """Add the session's listener, or add it again if a program may have removed it."""
    if spark in _listeners:
        spark.streams.removeListener(_listeners[spark])
    else:
        _listeners[spark] = BatchEndListener(spark)
    spark.streams.addListener(_listeners[spark])
