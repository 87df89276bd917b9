"""Copy a time range of an event hub to a Delta table: a backfill.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/batch_to_delta.conf \
        --conf spark.ehbalance.job.from=2026-01-31T12:00:00Z --conf spark.ehbalance.job.to=2026-01-31T18:00:00Z \
        jobs/batch_to_delta.py

The settings are Spark properties, explained in conf/batch_to_delta.conf. The job only inserts events that the table
does not contain. So it may be killed and run again, ranges may overlap, and `stream_to_delta` may write to the table
meanwhile.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.batch_to_delta import Settings, copy


def rows(events: DataFrame) -> DataFrame:
    """The table's rows, as in stream_to_delta. Put your own transformations here."""
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
