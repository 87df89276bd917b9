"""What a query says about where its lease table is to be, before anything has started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HUB = {"fullyQualifiedNamespace": "n.servicebus.windows.net", "eventHubName": "hub"}


def test_a_relative_path_is_accepted_in_local_mode_and_refused_elsewhere(spark: SparkSession) -> None:
    source = spark.readStream.format("ehbalance").options(**HUB)
    assert source.option("leaseTable", "some/leases").load().isStreaming
    for wrong in ("dbfs:/leases", "main.ops.leases", "abfss:/c@a/x"):
        with pytest.raises(AnalysisException, match=r"leaseTable='.*' is wrong: allowed is .*abfss://"):
            source.option("leaseTable", wrong).load()
        assert not Path(wrong.split("/")[0]).exists()
