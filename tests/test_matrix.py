"""The table of `make test-matrix`: what a version is said to do when a check has failed, or did not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from matrix.__main__ import FAILED, is_good, read_report
from matrix.checks import titles
from matrix.environments import SPARKS, lowest_versions
from spark_ehbalance.spark_versions import NEWEST, OLDEST, minor_version

REPORT = """<testsuites><testsuite>
<testcase name="test_stream[alone]"/>
<testcase name="test_stream[sharing]"><failure/></testcase>
<testcase name="test_restart[alone]"><error/></testcase><testcase name="test_restart[sharing]"/>
<testcase name="test_delta"><skipped message="not supported: no Delta"/></testcase>
<testcase name="test_the_version"><properties><property name="note" value="4.0.5"/></properties></testcase>
</testsuite></testsuites>"""


def test_the_worst_outcome_counts(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    results = read_report(tmp_path / "report.xml")
    assert results["test_stream"] == results["test_restart"] == FAILED
    assert "not supported: no Delta" in results["test_delta"]
    assert "ok" in results["test_the_version"]
    assert results["test_the_version"].endswith("4.0.5")


def test_every_check_has_to_run_and_none_to_fail() -> None:
    good = dict.fromkeys(titles(), "ok")
    assert is_good(good)
    assert not is_good(good | {"test_stream": FAILED})
    assert not is_good({name: each for name, each in good.items() if name != "test_stream"})
    assert not is_good({})


def test_every_supported_version_has_an_environment() -> None:
    versions = [minor_version(spark) for spark in SPARKS.values()]
    assert versions == [(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert [f"{major}.{minor}" for major, minor in versions] == list(SPARKS)


@pytest.mark.parametrize(
    ("package", "mended"),
    [
        ("pyarrow", "14.0.1"),  # CVE-2023-47248
        ("azure-identity", "1.16.1"),  # CVE-2024-35255
        ("azure-storage-blob", "12.13.0"),  # CVE-2022-30187
        ("psutil", "5.6.6"),  # CVE-2019-18874
        ("websockets", "9.1"),  # CVE-2021-33880
    ],
)
def test_no_version_with_a_known_vulnerability_is_allowed(package: str, mended: str) -> None:
    """Each dependency of users has a lower bound, or `lowest_versions` fails."""
    assert Version(lowest_versions()[package]) >= Version(mended)
