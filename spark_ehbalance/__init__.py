"""`spark.readStream.format("ehbalance")`: Azure Event Hubs for Spark, with partitions shared between queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make `format("ehbalance")` known to `spark`.

    Spark finds the format by itself where this package is installed; this is for where it is only on the path.
    """
    from spark_ehbalance.source.datasource import EhBalanceDataSource  # pyspark is slow to import

    spark.dataSource.register(EhBalanceDataSource)
