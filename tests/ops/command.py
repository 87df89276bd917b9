"""Runs the command `ehbalance` as a shell does."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_ehbalance.ops import main

KEY = "theVerySecretKey"


@dataclass
class Outcome:
    code: int
    out: str
    err: str


class Command:
    """Runs `ehbalance` as a shell does, and checks that no output contains a key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.delenv("EHBALANCE_CONNECTION_STRING", raising=False)

    def __call__(self, *arguments: object) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["ehbalance", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        printed = self._capsys.readouterr()
        assert KEY not in printed.out + printed.err
        assert "Traceback" not in printed.err
        return Outcome(code, printed.out, printed.err)

    def succeeds(self, *arguments: object) -> Outcome:
        """The outcome of a command that succeeds without a warning."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome

    def fails(self, code: int, *arguments: object) -> str:
        outcome = self(*arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.startswith("Error: ")
        assert outcome.err.count("\n") == 1
        return outcome.err


def assert_error(text: str, condition: str, *values: str) -> None:
    """Assert that a command printed an error with this condition, and with these values among its parameters."""
    assert text.startswith(f"Error: [{condition}] "), text
    for value in values:
        assert value in text, (value, text)


def connection_arguments(connection_string: str, folder: Path) -> tuple[str, str]:
    """Arguments that pass `connection_string` in a file, because command lines are public."""
    file = folder / "connection-string"
    file.write_text(connection_string + "\n")
    return ("--connection-string", f"file:{file}")
