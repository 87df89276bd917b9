"""Spark's settings in the tests: a small Spark with Delta, whose jars `make setup` has put beside Spark's own."""

from __future__ import annotations

#: The quick compiler alone, which pays off in processes that live for minutes. Its default code cache of 48 MB is too
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

#: Interpret expressions: with few rows, generating and compiling Java takes most of a query's time. Programs with a
#: Spark of their own, the test matrix and the stress tests have Spark's defaults.
INTERPRETED = SETTINGS | {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
