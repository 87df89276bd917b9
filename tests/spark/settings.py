"""Spark settings for tests: a small Spark with Delta, whose jars `make setup` put next to Spark's own."""

from __future__ import annotations

#: Only the quick compiler (C1), which suits processes that run for minutes. Its default code cache of 48 MB is too
#: small for Spark and Delta: Java would discard code and compile it again.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "2",
}

#: Interpret expressions: with few rows, generating and compiling Java takes most of a query's time. Programs with their
#: own Spark, the test matrix and the stress tests use Spark's defaults.
INTERPRETED = SETTINGS | {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
