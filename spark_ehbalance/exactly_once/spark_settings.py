"""Spark settings for Delta Lake."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

import pyspark

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.query.processes import parse_submit_settings, submit_settings
from spark_ehbalance.spark_versions import NEWEST_WITH_DELTA, UNIX_SOCKET, delta_jar

#: Dependencies of Delta's jar that Spark already contains in newer versions. Loading both versions would conflict, for
#: example RoaringBitmap 0.9's shims jar with Spark's RoaringBitmap 1.6.
EXCLUDES = ("com.*:*", "commons-*:*", "io.airlift:*", "javax.*:*", "org.*:*")

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

#: Settings for the number of tasks for a Delta table's state and for shuffles. With a local master, they are set to the
#: number of cores, because the defaults (50 and 200) are for clusters: on two busy cores, 50 tasks for a small table
#: took 19 s.
TASKS = ("spark.databricks.delta.snapshotPartitions", "spark.sql.shuffle.partitions")


def spark_settings() -> dict[str, str]:
    """Spark settings for Delta Lake, to set before Spark starts: `SparkSession.builder.config(map=spark_settings())`.

    If the installed Spark lacks the Delta jar, `spark.jars.packages` is set, so that Spark downloads it from Maven.

    `spark.python.unix.domain.socket.enabled` is true if the system has Unix sockets, which speed up the Python workers.
    For a local master, `spark.databricks.delta.snapshotPartitions` and `spark.sql.shuffle.partitions` are the number of
    cores. Spark's own configuration overrides these three settings. This function cannot detect a cluster master set
    with `.master(...)`; in that case, override the last two settings with `.config(...)` afterwards.

    Raises `EhBalanceError` if no version of Delta supports the installed Spark.
    """
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    settings = SESSION | _unless_given(home)
    if any(Path(home, "jars").glob("delta-spark_*.jar")):
        return settings
    jar = delta_jar(pyspark.__version__)
    if jar is None:
        newest = "{}.{}".format(*NEWEST_WITH_DELTA)
        supported = f"up to {newest} (pip install 'pyspark=={newest}.*')"
        raise EhBalanceError("EHB_DELTA_UNSUPPORTED", version=pyspark.__version__, supported=supported)
    return settings | {"spark.jars.packages": jar, "spark.jars.excludes": ",".join(EXCLUDES)}


def _unless_given(home: str) -> dict[str, str]:
    """The settings that Spark's own configuration lacks. The others are omitted, because the builder would override
    that configuration."""
    # Either spark-submit has started this program, or this program will start Spark through spark-submit.
    words = [*shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")), "org.apache.spark.deploy.SparkSubmit"]
    given = submit_settings() or parse_submit_settings(words, {**os.environ, "SPARK_HOME": home})
    wanted = {UNIX_SOCKET: "true"} if hasattr(socket, "AF_UNIX") else {}
    return {name: value for name, value in wanted.items() if name not in given} | local_task_settings(given)


def local_task_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The `TASKS` settings for a local master that are not in `given`."""
    if not given.get("spark.master", "").startswith("local"):
        return {}
    return dict.fromkeys((name for name in TASKS if name not in given), str(os.cpu_count() or 1))
