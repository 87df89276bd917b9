"""Stream an event hub into a Delta table.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/stream_to_delta.conf jobs/stream_to_delta.py

The settings are Spark properties, explained in conf/stream_to_delta.conf. The connection string is an environment
variable, because command lines and Spark's UI show properties to everybody; `source.fullyQualifiedNamespace` (Entra
ID) needs none. Other secrets are references: `env:NAME` or `file:PATH`. SIGTERM and SIGINT stop the job after
the running batch.

Exactly once: the table contains every event once, even if this job, or one that shares the table and the lease table,
crashes (`spark_ehbalance.exactly_once.once`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.stream_to_delta import Settings, start


def rows(events: DataFrame) -> DataFrame:
    """The table's rows. Put your own transformations here."""
    return events.selectExpr(
        "cast(body as string) as body",
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        "partitionKey",
        "properties",
    )


if __name__ == "__main__":
    main(Settings, lambda spark, settings: start(spark, settings, rows))
