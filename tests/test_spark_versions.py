"""Which Delta goes with which Spark."""

from __future__ import annotations

from importlib.metadata import requires

import pytest

from spark_ehbalance.spark_versions import Delta, delta_for, is_supported, minor_version


@pytest.mark.parametrize(
    ("spark", "jar", "requirement"),
    [
        ("4.0.0", "io.delta:delta-spark_2.13:4.0.1", "delta-spark==4.0.1"),
        ("4.0.5", "io.delta:delta-spark_2.13:4.0.1", "delta-spark==4.0.1"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0", "delta-spark==4.4.0"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0", "delta-spark==4.4.0"),
        ("4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0", None),  # pip would take pyspark back to 4.2.0
        ("4.2.0.dev3", "io.delta:delta-spark_4.2_2.13:4.4.0", "delta-spark==4.4.0"),
    ],
)
def test_the_delta_of_a_spark(spark: str, jar: str, requirement: str | None) -> None:
    delta = delta_for(spark)
    assert delta is not None
    assert delta.jar == jar
    assert delta.jar.endswith(f":{delta.version}")
    assert delta.requirement(spark) == requirement


@pytest.mark.parametrize("spark", ["4.3.0", "4.3.1-SNAPSHOT", "3.5.7", "5.0"])
def test_a_spark_without_delta(spark: str) -> None:
    assert delta_for(spark) is None


def test_what_the_installed_delta_says_of_pyspark() -> None:
    """delta-spark 4.4 allows no pyspark above 4.2.0, which is why the `delta` extra does not name it."""
    delta: Delta | None = delta_for("4.2.0")
    assert delta is not None
    assert delta.newest_pyspark is not None
    newest = ".".join(map(str, delta.newest_pyspark))
    assert any(each.startswith("pyspark") and f"<={newest}" in each for each in requires("delta-spark") or [])


def test_the_supported_versions() -> None:
    sparks = ["3.5.9", "4.0.0", "4.1.4", "4.2.1", "4.3.0-SNAPSHOT", "4.4.0", "4.10.0", "5.0.0"]
    assert [each for each in sparks if is_supported(each)] == ["4.0.0", "4.1.4", "4.2.1", "4.3.0-SNAPSHOT"]
    assert minor_version("4.10.2") == (4, 10)


@pytest.mark.parametrize("wrong", ["", "4", "latest", "v4.2", "4.2.0.1"])
def test_what_is_no_version(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a version of Spark"):
        delta_for(wrong)
