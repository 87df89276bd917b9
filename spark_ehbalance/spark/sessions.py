"""Spark Connect sessions, and the causes of Spark's errors."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ehbalance.dependencies import Py4JError

#: Spark's errors, and py4j's errors, which pyspark does not always convert (for example, if the format is unknown).
SPARK_ERRORS = (PySparkException, Py4JError)


def remote(spark: Any) -> SparkSession | None:
    """`spark` if it is a Spark Connect session, else None."""
    return spark if spark is not None and not hasattr(spark, "_jvm") else None


def cause(error: Exception) -> str:
    """The last line of the Python traceback in `error`; if it contains none, the first line."""
    text = str(error).partition("\nJVM stacktrace")[0].partition("\n=== Streaming Query ===")[0]
    lines = [line.strip() for line in text.splitlines()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        ours = [line for line in lines if line and not line.startswith(("SQLSTATE", "at ", "...", "Caused by: "))]
        return ours[-1].removeprefix(": ")  # py4j's prefix of a JVM exception
    if isinstance(error, Py4JError) and len(lines) > 1:  # the first line is py4j's own
        return lines[1].removeprefix(": ")
    return lines[0]
