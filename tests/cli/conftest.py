"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator.fixtures import emulator
from tests.cli.command import Command

__all__ = ["emulator"]


@pytest.fixture
def ehbalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "leases"
