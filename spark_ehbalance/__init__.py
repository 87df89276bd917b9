"""`spark.readStream.format("ehbalance")`: a source for Azure Event Hubs. Independent queries can share a hub's
partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ehbalance.group.lag import QueryLag

__all__ = ["lag", "merge", "register", "run", "stop"]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Register the format and the listener; see `spark_ehbalance.spark.registration.register`."""
    from spark_ehbalance.dependencies import require_spark

    require_spark()
    from spark_ehbalance.spark import registration  # pyspark is slow to import

    registration.register(spark)


def run(*queries: StreamingQuery, timeout: float = 25.0) -> None:
    """Wait for queries to end, and stop them on a signal; see `spark_ehbalance.spark.running.run`."""
    from spark_ehbalance.spark import running

    running.run(*queries, timeout=timeout)


def stop(query: StreamingQuery, timeout: float = 60.0) -> None:
    """Stop a query without causing duplicates; see `spark_ehbalance.spark.stopping.stop`."""
    from spark_ehbalance.spark import stopping

    stopping.stop(query, timeout)


def lag(query: StreamingQuery) -> QueryLag | None:
    """How far a query is behind; see `spark_ehbalance.spark.lag.lag`."""
    from spark_ehbalance.spark import lag as find_lag

    return find_lag.lag(query)


def merge(df: DataFrame, target: str, *, update: bool = True) -> None:
    """Upsert rows by event into a Delta table; see `spark_ehbalance.exactly_once.merging.merge`."""
    from spark_ehbalance.exactly_once import merging

    merging.merge(df, target, update=update)
