"""What is installed beside this package. Spark is no dependency of it: most often it is there already."""

from __future__ import annotations

import importlib.util

from spark_ehbalance.errors import SparkMissingError


def need_spark() -> None:
    """Raises `SparkMissingError` unless pyspark or pyspark-client is installed. To be called before either is imported,
    whose own error does not say what to install."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError(
            'pyspark is not installed: `pip install "spark-ehbalance[spark]"`, or, for programs whose Spark is a Spark '
            'Connect server, `pip install "spark-ehbalance[connect]"`'
        )
