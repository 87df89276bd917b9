"""Stream an event hub into a Delta table.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/stream_to_delta.conf jobs/stream_to_delta.py

The settings are Spark properties, explained in conf/stream_to_delta.conf. The connection string is passed in an
environment variable, because command lines and Spark's UI show properties to everybody. With
`source.fullyQualifiedNamespace` (Entra ID), none is needed. Pass other secrets by reference: `env:NAME` or `file:PATH`.
On SIGTERM or SIGINT, the job stops after the running batch.

The table contains every event exactly once, even if this job crashes, or another job that shares the table and the
lease table (`spark_ehbalance.exactly_once.once`).
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
