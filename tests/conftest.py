"""Fixtures that several folders share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

#: With pytest-xdist the tests of one folder go one after the other in one process, and in the same those of all folders
#: that start Sparks, which are kept from test to test.
_GROUPS = {"chaos": "spark", "jobs": "spark"}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist asks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        item.add_marker(pytest.mark.xdist_group(_GROUPS.get(folder, folder)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with Delta, whose jars `make setup` has put beside Spark's own."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ehbalance tests")
        .config("spark.ui.enabled", "false")
        # Java compiles less well but sooner, which counts for a process that lives for minutes.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()
