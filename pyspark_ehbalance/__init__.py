"""Lets Spark find `format("ehbalance")`: it looks for a `DefaultSource` in modules named `pyspark_*`.

Spark skips a module that cannot be imported, and then reports only an unknown format. Therefore this module defines a
`DefaultSource` even if a dependency is missing, to report the reason. This file also runs on Python 3.8.
"""

import sys
from typing import Any

__all__ = ["DefaultSource"]

try:
    from spark_ehbalance.spark.datasource import EhBalanceDataSource as DefaultSource
except Exception as failure:
    from pyspark.sql.datasource import DataSource

    _PYTHON = "{} (Python {}.{})".format(sys.executable, *sys.version_info[:2])
    _REASON = "{}: {}".format(type(failure).__name__, " ".join(str(failure).split()))
    if sys.version_info < (3, 10):  # noqa: UP036 # Spark may start an older Python
        _REASON += ". It needs Python 3.10 or newer"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """A substitute for the source, whose constructor reports the reason."""

        def __init__(self, options: Any) -> None:
            try:
                from spark_ehbalance.errors import InstallationError
                from spark_ehbalance.spark.error_line import single_line_errors
            except Exception:
                raise ImportError(f"The source ehbalance cannot start in {_PYTHON}: {_REASON}.") from None
            with single_line_errors():
                raise InstallationError("EHB_NOT_IMPORTABLE", python=_PYTHON, reason=_REASON) from None

        @classmethod
        def name(cls) -> str:
            return "ehbalance"
