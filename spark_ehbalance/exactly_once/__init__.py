"""Exactly-once writes into Delta, from any number of queries:

import spark_ehbalance.exactly_once
stream.writeStream.foreachBatch(spark_ehbalance.exactly_once.once("abfss://.../events")).start()
"""

from spark_ehbalance.dependencies import require_spark

require_spark()
from spark_ehbalance.exactly_once.spark_settings import spark_settings  # noqa: E402
from spark_ehbalance.exactly_once.writing import once, write_once  # noqa: E402

__all__ = ["once", "spark_settings", "write_once"]
