"""The Delta version for each Spark version."""

from __future__ import annotations

import pytest

from spark_ehbalance.spark_versions import delta_jar, minor_version


@pytest.mark.parametrize(
    ("spark", "jar"),
    [
        ("4.0.5", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0.dev3", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.3.1-SNAPSHOT", None),
        ("3.5.7", None),
    ],
)
def test_delta_version_matches_spark(spark: str, jar: str | None) -> None:
    assert delta_jar(spark) == jar


def test_versions_are_numbers() -> None:
    assert minor_version("4.10.2") == (4, 10)
    for wrong in ("", "4", "latest", "v4.2", "4.2.0.1"):
        with pytest.raises(ValueError, match="is not a version of Spark"):
            minor_version(wrong)
