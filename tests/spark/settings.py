"""Spark's settings in the tests: a small Spark with Delta, whose jars `make setup` has put beside Spark's own."""

from __future__ import annotations

#: Java compiles less well but sooner, which counts for processes that live for minutes.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "2",
}
