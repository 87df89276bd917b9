"""Stream the fields of JSON bodies into a Delta table, and events that cannot be parsed into a second table.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/parse_to_delta.conf jobs/parse_to_delta.py

The settings are Spark properties, explained in conf/parse_to_delta.conf. Each event is written exactly once, to one of
the two tables.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.parse_to_delta import Settings, start


def rows(parsed: DataFrame) -> DataFrame:
    """The table's rows; the column `value` contains the fields. Put your own transformations here."""
    return parsed.select("partition", "sequenceNumber", "enqueuedTime", "value.*")


if __name__ == "__main__":
    main(Settings, lambda spark, settings: start(spark, settings, rows))
