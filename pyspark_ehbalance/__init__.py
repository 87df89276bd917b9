"""Lets Spark find `format("ehbalance")`: it looks for a `DefaultSource` in modules named `pyspark_*`."""

from spark_ehbalance.source.datasource import EhBalanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
