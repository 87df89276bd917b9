"""Lets Spark find `format("ehbalance")`: it looks for a `DefaultSource` in modules named `pyspark_*`.

Spark passes over a module that cannot be imported, and says only that there is no such format. So where something that
the source needs is missing, there is a `DefaultSource` nevertheless, which says what. Python 3.8 can read this file.
"""

import sys
from typing import Any

__all__ = ["DefaultSource"]

try:
    from spark_ehbalance.spark.datasource import EhBalanceDataSource as DefaultSource
except Exception as failure:
    from pyspark.sql.datasource import DataSource

    _WHY = "the source ehbalance cannot start in {} (Python {}.{}), Spark's Python on this machine: {}: {}. {}".format(
        sys.executable,
        *sys.version_info[:2],
        type(failure).__name__,
        " ".join(str(failure).split()),
        "Install spark-ehbalance there, with all that it needs, or set PYSPARK_PYTHON to a Python that has it"
        if sys.version_info >= (3, 10)
        else "It needs Python 3.10 or newer: set PYSPARK_PYTHON to one",
    )

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """In the place of the source: its constructor says why."""

        def __init__(self, options: Any) -> None:
            try:
                from spark_ehbalance.errors import InstallationError
                from spark_ehbalance.spark.error_line import single_line_errors
            except Exception:
                raise ImportError(_WHY) from None
            with single_line_errors():
                raise InstallationError(_WHY) from None

        @classmethod
        def name(cls) -> str:
            return "ehbalance"
