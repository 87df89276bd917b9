"""Stream an event hub into a Delta table.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/stream_to_delta.conf jobs/stream_to_delta.py

The settings are Spark properties, explained in conf/stream_to_delta.conf. The connection string is an environment
variable, because command lines and Spark's UI show properties to everybody; with `source.fullyQualifiedNamespace`
(Entra ID) there is none. Other secrets are references: `env:NAME` or `file:PATH`. SIGTERM and SIGINT stop the job after
the running batch.

Exactly once: the table holds every event once, whatever happens to the job and to other jobs that write the same
table with the same lease table (`spark_ehbalance.exactly_once.once`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.stream_to_delta import Settings, start


def rows(events: DataFrame) -> DataFrame:
    """The rows for the table. Put your own transformations here."""
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
