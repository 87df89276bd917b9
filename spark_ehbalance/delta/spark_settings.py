"""Delta Lake in a Spark of your own: which settings it needs, and which of its versions."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark_versions import NEWEST_WITH_DELTA, delta_for

#: What Delta's jar depends on and Spark has already, in newer versions: Delta's would conflict. For example, the shims
#: jar of RoaringBitmap 0.9 has a class that is also in Spark's RoaringBitmap 1.6.
EXCLUDES = ("com.*:*", "commons-*:*", "io.airlift:*", "javax.*:*", "org.*:*")

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def spark_settings() -> dict[str, str]:
    """Spark's settings for Delta Lake: `SparkSession.builder.config(map=spark_settings())`, before Spark has started.

    Unless Delta is among the jars of the installed Spark, `spark.jars.packages` names the Delta that goes with it,
    which Spark then fetches from Maven once. Databricks, Fabric and the like have Delta and need no settings.

    Raises `EhBalanceError` if there is no Delta for this Spark.
    """
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    if any(jars.glob("delta-spark_*.jar")):
        return dict(SESSION)
    delta = delta_for(pyspark.__version__)
    if delta is None:
        newest = "{}.{}".format(*NEWEST_WITH_DELTA)
        raise EhBalanceError(
            f"there is no Delta Lake for Spark {pyspark.__version__} yet, the newest is for {newest}: "
            f'pip install "pyspark=={newest}.*"'
        )
    return SESSION | {"spark.jars.packages": delta.jar, "spark.jars.excludes": ",".join(EXCLUDES)}
