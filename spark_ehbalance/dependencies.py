"""Optional packages. Spark is not a dependency of this package, because most environments already have it."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_ehbalance.errors import SparkMissingError
from spark_ehbalance.spark_versions import NEWEST, OLDEST, minor_version

if TYPE_CHECKING:
    from py4j.protocol import Py4JError, Py4JJavaError
else:
    try:
        from py4j.protocol import Py4JError, Py4JJavaError
    except ModuleNotFoundError:  # pyspark-client has no JVM, so there are no such errors to catch

        class Py4JError(Exception):
            """Never raised."""

        class Py4JJavaError(Py4JError):
            """Never raised."""


__all__ = ["Py4JError", "Py4JJavaError", "require_spark"]


def require_spark() -> None:
    """Raise `SparkMissingError` unless pyspark or pyspark-client is installed in a version that supports Python data
    sources. Call this before importing either package."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError("EHB_SPARK_MISSING")
    import pyspark

    with suppress(ValueError):  # some platforms use their own version scheme
        if minor_version(pyspark.__version__) < OLDEST:
            supported = " to ".join("{}.{}".format(*version) for version in (OLDEST, NEWEST))
            raise SparkMissingError("EHB_SPARK_UNSUPPORTED", version=pyspark.__version__, supported=supported)
