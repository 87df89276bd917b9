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
        """The outcome of a command that does what it is asked, without a warning."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome

    def fails(self, code: int, *arguments: object) -> str:
        outcome = self(*arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.startswith("Error: ")
        assert outcome.err.count("\n") == 1
        return outcome.err


def kept(connection_string: str, folder: Path) -> tuple[str, str]:
    """The arguments for a connection string: it is in a file, because everybody can see command lines."""
    file = folder / "connection-string"
    file.write_text(connection_string + "\n")
    return ("--connection-string", f"file:{file}")
