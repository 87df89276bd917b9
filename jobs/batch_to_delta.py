"""Bring a time range of an event hub into a Delta table: a backfill.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/batch_to_delta.conf \
        --conf spark.ehbalance.job.from=2026-01-31T12:00:00Z --conf spark.ehbalance.job.to=2026-01-31T18:00:00Z \
        jobs/batch_to_delta.py

The settings are Spark properties, explained in conf/batch_to_delta.conf. Only events that the table does not hold are
inserted, and nothing is changed or deleted: the job may be killed and run again, ranges may overlap, and
`stream_to_delta` may fill the table at the same time.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.batch_to_delta import Settings, copy


def rows(events: DataFrame) -> DataFrame:
    """The rows for the table, as those of stream_to_delta. Put your own transformations here."""
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
    main(Settings, lambda spark, settings: copy(spark, settings, rows))
