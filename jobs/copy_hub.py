"""Copy the events of an event hub to another event hub.

    EHBALANCE_CONNECTION_STRING=... EHBALANCE_SINK_CONNECTION_STRING=... \
        spark-submit --properties-file conf/copy_hub.conf jobs/copy_hub.py

The settings are Spark properties, explained in conf/copy_hub.conf. The job copies bodies, partition keys, properties
with their types, and the system properties that can be sent. Events with the same key keep their order. After a crash,
the last batch is sent again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_ehbalance.jobs import main
from spark_ehbalance.jobs.copy_hub import Settings, start


def rows(events: DataFrame) -> DataFrame:
    """The events to send; the first three columns are for the table of unsendable events. Put your own filters and
    transformations here; values of properties are JSON."""
    return events.select(
        "partition", "sequenceNumber", "enqueuedTime", "body", "partitionKey", "properties", "systemProperties"
    )


if __name__ == "__main__":
    main(Settings, lambda spark, settings: start(spark, settings, rows))
