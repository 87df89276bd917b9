"""The versions of Spark that this package supports, and the Delta that goes with each. Pure: nothing is imported.

The table is tested by `make test-matrix`; docs/compatibility.md shows it to users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Major and minor version of the oldest and the newest Spark that the tests use.
OLDEST = (4, 0)
NEWEST = (4, 3)

#: Whether Spark and its Python workers talk through a Unix socket instead of TCP on the loopback address, on one
#: machine each. Spark 4.0 does not know it. A batch of 250,000 events took 485 ms instead of 650 ms.
UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"
UNIX_SOCKET_SINCE = (4, 1)


@dataclass(frozen=True, slots=True)
class Delta:
    """A version of Delta Lake for one Spark: the Maven coordinate of its `jar`, for `--packages`, and the newest
    pyspark (None: any) beside which pip installs its Python package, delta-spark, without changing pyspark.

    This package needs the jar only; the Python package is for programs that import `delta`.
    """

    version: str
    jar: str
    newest_pyspark: tuple[int, int, int] | None = None

    def requirement(self, spark: str) -> str | None:
        """For pip: the delta-spark that leaves pyspark as it is; None if none does (then `pip install --no-deps`).

        Raises `ValueError` if `spark` is not a version.
        """
        fits = self.newest_pyspark is None or _numbers(spark) <= self.newest_pyspark
        return f"delta-spark=={self.version}" if fits else None


_DELTA = {
    (4, 0): Delta("4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
    # Not 4.1.0: it needs a class that Spark 4.1.4 does not have, to change a table's properties.
    (4, 1): Delta("4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0", newest_pyspark=(4, 2, 0)),
    # Its Python package allows no pyspark above 4.2.0, its jar works with all of 4.2.
    (4, 2): Delta("4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0", newest_pyspark=(4, 2, 0)),
    # 4.3: there is no Delta for it.
}

NEWEST_WITH_DELTA = max(_DELTA)


def minor_version(spark: str) -> tuple[int, int]:
    """Major and minor version of a Spark version such as 4.2.0, 4.2 or 4.3.0-SNAPSHOT.

    Raises `ValueError` if it is not one.
    """
    return _numbers(spark)[:2]


def is_supported(spark: str) -> bool:
    """Whether the tests use this Spark's minor version. Raises `ValueError` if `spark` is not a version."""
    return OLDEST <= minor_version(spark) <= NEWEST


def delta_for(spark: str) -> Delta | None:
    """The Delta to use with this Spark; None if there is none. Raises `ValueError` if `spark` is not a version."""
    return _DELTA.get(minor_version(spark))


def _numbers(version: str) -> tuple[int, int, int]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?![\d.]*\d)", version)
    if not found:
        raise ValueError(f"{version!r} is not a version of Spark, such as 4.2.0")
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)
