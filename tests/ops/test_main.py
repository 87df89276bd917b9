"""The command line: arguments, exit codes and the installed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperCommand

from spark_ehbalance.ops.main import app
from tests.ops.command import KEY, Command, assert_error
from tests.ops.groups import Group

INSTALLED = Path(sys.executable).with_name("ehbalance")


def test_version_matches_the_installed_package(ehbalance: Command) -> None:
    assert ehbalance("--version").out == f"ehbalance {version('spark-ehbalance')}\n"


@pytest.mark.parametrize("command", typer.main.get_command(app).commands.values(), ids=lambda command: command.name)  # type: ignore[attr-defined]
def test_help_fits_80_columns(ehbalance: Command, monkeypatch: pytest.MonkeyPatch, command: TyperCommand) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("EHBALANCE_CONNECTION_STRING", f"SharedAccessKey={KEY}")  # hidden
    printed = ehbalance(command.name, "--help").out
    assert "…" not in printed, "nothing is cut"
    assert {name for parameter in command.params for name in parameter.opts} <= {*printed.replace("...", " ").split()}
    assert printed.count("\n") <= 50


def test_installed_command_prints_json_and_returns_exit_codes(used: Group, tmp_path: Path) -> None:
    good = subprocess.run([INSTALLED, "status", used.table, "--json"], capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["eventHub"] == "hub"
    env = os.environ | {"EHBALANCE_CONNECTION_STRING": f"SharedAccessKey={KEY}"}
    wrong = subprocess.run([INSTALLED, "init", tmp_path / "x"], capture_output=True, text=True, timeout=60, env=env)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("Error: [EHB_CONNECTION_STRING_INVALID] connectionString")
    assert wrong.stderr.count("\n") == 1
    assert KEY not in wrong.stderr


def test_emulator_rejects_a_key_as_an_argument(ehbalance: Command) -> None:
    key = "VGhlS2V5T2ZUaGVFbXVsYXRvcg=="
    command = ("emulator", "--hub", "hub:0", "--sas-key")  # never starts
    assert_error(ehbalance.fails(2, *command, f"reader={key}"), "EHB_SECRET_EXPOSED", "An argument")
    missing = ehbalance.fails(2, *command, "RootManageSharedAccessKey=env:NO_SUCH_KEY")
    assert "the key of 'RootManageSharedAccessKey' is missing or empty" in missing


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize(("command", "unbuffered"), [("status", ""), ("positions", "1")])
def test_full_disk_is_reported_on_one_line(used: Group, command: str, unbuffered: str) -> None:
    arguments, env = [INSTALLED, command, used.table], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    assert ended.returncode == 1
    error = [line for line in ended.stderr.splitlines() if not line.startswith("Warning: ")]
    assert error == ["Error: [EHB_FILE_NOT_WRITTEN] Standard output could not be written: No space left on device."]


@pytest.mark.parametrize("env", [{"COLUMNS": "0"}, {"PYTHONIOENCODING": "latin-1"}], ids=["width", "encoding"])
def test_output_to_unusual_terminals(used: Group, env: dict[str, str]) -> None:
    used("drain", "alice")
    for command in ("status", "history"):
        ended = subprocess.run(
            [INSTALLED, command, used.table], capture_output=True, encoding="latin-1", timeout=60, env=os.environ | env
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "alice" in ended.stdout


def test_output_to_a_closed_file(used: Group) -> None:
    command = f"exec {INSTALLED} status {used.table} >&-"
    ended = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_during_the_imports_prints_nothing() -> None:
    interrupted = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "spark_ehbalance.ops.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from spark_ehbalance.ops import main
"""
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_watching_prints_to_a_pipe(used: Group) -> None:
    process = subprocess.Popen([INSTALLED, "status", used.table, "--watch"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    titles = (line for line in process.stdout if "hub/$default" in line)
    assert all(next(titles, None) for _ in range(2))
    process.kill()
    process.communicate()


def test_watching_ends_with_ctrl_c(used: Group) -> None:
    process = subprocess.Popen(
        [INSTALLED, "status", used.table, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "FORCE_COLOR": "1"},
    )
    assert process.stdout is not None
    assert any("alice" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (0, 1, 130)
