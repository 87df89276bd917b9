"""Spark's settings for Delta: the jars that Spark has are not fetched."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from spark_ehbalance.delta import spark_settings
from spark_ehbalance.delta.spark_settings import SESSION
from spark_ehbalance.errors import EhBalanceError


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    return tmp_path


def test_a_spark_with_delta_fetches_nothing(spark_home: Path) -> None:
    (spark_home / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert spark_settings() == SESSION


@pytest.mark.parametrize(
    ("version", "jar"),
    [("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"), ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0")],
)
def test_a_spark_without_delta_fetches_the_one_that_goes_with_it(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, version: str, jar: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    settings = spark_settings()
    assert settings["spark.jars.packages"] == jar
    assert settings.items() >= SESSION.items()


def test_a_spark_for_which_there_is_no_delta_is_named(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(EhBalanceError, match=r'for Spark 4\.3\.0 yet, .*: pip install "pyspark==4\.2\.\*"'):
        spark_settings()
