"""Spark settings for Delta: installed jars are not downloaded, and a local Spark runs few tasks."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pyspark
import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.exactly_once import spark_settings
from spark_ehbalance.exactly_once.spark_settings import SESSION, TASKS
from spark_ehbalance.spark_versions import UNIX_SOCKET
from tests.raising import raises

#: The module, which is shadowed by the function of the same name.
MODULE = sys.modules["spark_ehbalance.exactly_once.spark_settings"]


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "jars").mkdir()
    (tmp_path / "conf").mkdir()
    return tmp_path


def test_spark_with_delta_downloads_nothing(spark_home: Path) -> None:
    (spark_home / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert spark_settings() == SESSION | {UNIX_SOCKET: "true"} | dict.fromkeys(TASKS, str(os.cpu_count()))


@pytest.mark.parametrize(
    ("version", "jar"),
    [("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"), ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0")],
)
def test_spark_without_delta_downloads_the_matching_version(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, version: str, jar: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    settings = spark_settings()
    assert settings["spark.jars.packages"] == jar
    assert settings.items() >= SESSION.items()


def test_error_names_a_spark_version_without_matching_delta(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    supported = re.compile("pyspark==4.2")
    with raises(EhBalanceError, "EHB_DELTA_UNSUPPORTED", version="4.3.0", supported=supported):
        spark_settings()


@pytest.mark.usefixtures("spark_home")
@pytest.mark.parametrize("arguments", ["pyspark-shell", "--master local-cluster[2,1,1024] pyspark-shell"])
def test_local_master_gets_as_many_tasks_as_cores(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert {spark_settings()[name] for name in TASKS} == {str(os.cpu_count())}


def test_users_settings_are_kept(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting in the builder would override the user's."""
    snapshot, shuffle = TASKS
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {UNIX_SOCKET}=false pyspark-shell")
    assert UNIX_SOCKET not in spark_settings()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {shuffle}=8 pyspark-shell")
    assert snapshot in spark_settings()
    assert shuffle not in spark_settings()
    (spark_home / "conf" / "spark-defaults.conf").write_text(f"{snapshot}  3\n")
    assert not spark_settings().keys() & set(TASKS)
    started = {"spark.master": "local[2]", shuffle: "8"}
    monkeypatch.setattr(MODULE, "submit_settings", lambda: started)
    assert spark_settings().keys() & set(TASKS) == {snapshot}, "spark-submit has read another file"


def test_cluster_keeps_its_number_of_tasks(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def given() -> set[str]:
        return spark_settings().keys() & set(TASKS)

    assert given()
    with monkeypatch.context() as context:
        context.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://host:7077 pyspark-shell")
        assert not given()
    with monkeypatch.context() as context:
        context.setattr(MODULE, "submit_settings", lambda: {"spark.master": "yarn"})
        assert not given()
    (spark_home / "conf" / "spark-defaults.conf").write_text("spark.master  spark://host:7077\n")
    assert not given()
