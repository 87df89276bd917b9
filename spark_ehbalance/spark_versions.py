"""The versions of Spark that this package supports, and the matching versions of Delta. Does no I/O.

`make test-matrix` tests these versions; docs/platforms.md lists them for users.
"""

from __future__ import annotations

import re

#: Major and minor version of the oldest and the newest Spark with which this package is tested.
OLDEST = (4, 0)
NEWEST = (4, 3)

#: The setting that makes Spark and its Python workers communicate through a Unix socket instead of TCP on the loopback
#: address; Spark 4.0 ignores it. With it, a batch of 250,000 events took 485 ms instead of 650 ms.
UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"

#: The Maven coordinate of Delta Lake's jar for each version of Spark. Delta's Python package is needed only by programs
#: that import `delta`.
_DELTA = {
    (4, 0): "io.delta:delta-spark_2.13:4.0.1",
    # Not Delta 4.1.0, because changing a table's properties needs a class that Spark 4.1.4 lacks.
    (4, 1): "io.delta:delta-spark_4.1_2.13:4.4.0",
    # The Python package requires pyspark 4.2.0 or older; the jar works with all of 4.2.
    (4, 2): "io.delta:delta-spark_4.2_2.13:4.4.0",
    # 4.3: not supported by Delta yet.
}

NEWEST_WITH_DELTA = max(_DELTA)


def minor_version(spark: str) -> tuple[int, int]:
    """Major and minor version of a Spark version such as 4.2.0, 4.2 or 4.3.0-SNAPSHOT.

    Raises `ValueError` for any other string.
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.\d+)?(?![\d.]*\d)", spark)
    if not found:
        raise ValueError(f"{spark!r} is not a version of Spark, such as 4.2.0")
    return int(found[1]), int(found[2])


def delta_jar(spark: str) -> str | None:
    """The coordinate of Delta Lake for this version of Spark, as `--packages` expects it; None if Delta Lake does not
    support this version. Raises `ValueError` if `spark` is not a version."""
    return _DELTA.get(minor_version(spark))
