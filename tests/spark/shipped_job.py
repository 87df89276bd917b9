"""A job for spark-submit that uses only the package: streams a hub into a Delta table and prints where driver and
executors imported the package from. Arguments: options as JSON, a folder."""

import json
import sys

from pyspark.sql import SparkSession

import spark_ehbalance
import spark_ehbalance.exactly_once


def imported_from(_: object) -> object:
    import pyarrow

    import spark_ehbalance

    yield pyarrow.RecordBatch.from_pydict({"file": [spark_ehbalance.__file__], "python": [sys.executable]})


options, folder = json.loads(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.getOrCreate()
spark_ehbalance.register(spark)
query = (
    spark.readStream.format("ehbalance")
    .options(**options)
    .load()
    .writeStream.foreachBatch(spark_ehbalance.exactly_once.once(f"{folder}/target"))
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
found = spark.range(0, 8, 1, 8).mapInArrow(imported_from, "file string, python string").distinct().collect()
print(json.dumps({"driver": spark_ehbalance.__file__, "executors": sorted(map(list, found))}))
spark.stop()
