"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.groups import connection, emulator, group, secrets, used

__all__ = ["connection", "emulator", "group", "secrets", "used"]


@pytest.fixture
def ehbalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "leases"
