"""A Spark session of the checks, also for the process that a check kills."""

from __future__ import annotations

import pyspark
from pyspark.sql import SparkSession

from spark_ehbalance.spark_versions import delta_for, minor_version

SPARK = pyspark.__version__
DELTA = delta_for(SPARK)
#: From this version on, Spark tells the planner where a batch begins, its limit, and of Trigger.AvailableNow.
TELLS = minor_version(SPARK) >= (4, 2)


def make_session() -> SparkSession:
    """A small one, with Delta where there is one for this Spark."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        # Java compiles less well but sooner, which counts for processes that live for a minute.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        # Seconds in which Python reaches the JVM: 15 by default, too few for a machine with more to do.
        .config("spark.python.authenticate.socketTimeout", "120s")
    )
    if DELTA:
        builder = (
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "2")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
