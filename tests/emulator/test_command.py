"""The emulator as a process: ready line, signals, and errors for invalid arguments."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError

from spark_ehbalance.emulator import Emulator
from tests.emulator.clients import DEADLINE, numbers, producer, reader
from tests.ops.command import Command

KEY = "cmlnaHQ="
COMMAND = [sys.executable, "-c", "from spark_ehbalance.ops.main import main; main()", "emulator"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run the emulator with `hub`. Yields the process, its connection string, and the rest of its ready line."""
    command = [*COMMAND, "--port", "0", "--hub", "hub:2", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.fullmatch(r"Emulator ready: (Endpoint=.+;)( \(.*\))?\n", line)
            assert match is not None, line
            yield process, match[1] + "EntityPath=hub", match[2] or ""
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_serves_until_a_signal_and_exits_cleanly(number: signal.Signals) -> None:
    with running("--consumer-group", "second") as (process, connection, _):
        with producer(connection) as client:
            client.send_batch([EventData(b"x")] * 3, partition_id="1")
        with reader(connection, "1", group="second") as events:
            assert numbers(events.read(3)) == [0, 1, 2]
            process.send_signal(number)
            assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--hub", "hub"], "Error: --hub 'hub': expected NAME:PARTITIONS, for example flights:8"),
        (["--hub", "hub:0"], "Error: hub 'hub' cannot have 0 partitions: use 1 to 2000"),
        (["--sas-key", "reader=c2VjcmV0"], "Error: --sas-key: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--sas-key", "reader=env:NO_SUCH_KEY"], "Error: --sas-key: the key of 'reader' is missing or empty"),
    ],
)
def test_invalid_arguments_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    error = Command(monkeypatch, capsys).fails(2, "emulator", *arguments)
    assert error.startswith(text)
    assert "c2VjcmV0" not in error


@pytest.mark.parametrize("option", ["--port", "--websocket-port"])
def test_invalid_port_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    outcome = Command(monkeypatch, capsys)("emulator", option, "70000")
    assert outcome.code == 2
    assert f"'{option}'" in outcome.err
    assert "65535" in outcome.err


def test_keys_are_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READERS_KEY", KEY)
    (tmp_path / "key").write_text(f"{KEY}\n")
    keys = ("--sas-key", "reader=env:READERS_KEY", "--sas-key", f"writer=file:{tmp_path / 'key'}")
    with running(*keys) as (_, connection, _):
        assert "SharedAccessKeyName=reader;SharedAccessKey=(not shown);" in connection
        for name in ("reader", "writer"):
            with reader(connection.replace("(not shown)", KEY).replace("reader", name)):
                pass
        wrong = connection.replace("(not shown)", "d3Jvbmc=")
        client = EventHubConsumerClient.from_connection_string(wrong, "$Default", retry_total=0)
        with client, pytest.raises(AuthenticationError):
            client.get_partition_ids()


def test_port_in_use_is_one_line(emulator: Emulator) -> None:
    command = [*COMMAND, "--port", str(emulator.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "address already in use" in ended.stderr.lower()
    assert "--port 0 selects a free one" in ended.stderr
