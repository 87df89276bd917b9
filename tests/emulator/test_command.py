"""The emulator as a process: ready line, signals, kill -9, and the errors for invalid arguments."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError

from spark_ehbalance.emulator import Emulator, EmulatorControl
from spark_ehbalance.emulator.amqp.frames import Attach

from .clients import DEADLINE, numbers, producer, reader
from .raw import RawPeer

COMMAND = [sys.executable, "-m", "spark_ehbalance.emulator"]


@contextmanager
def _running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The process, its connection string and its control port."""
    command = [*COMMAND, "--port", "0", "--control-port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"Emulator ready: (Endpoint=.+;) \(control port (\d+)\)\n", line)
            assert found is not None, line
            yield process, found[1], int(found[2])
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_exits_cleanly(number: signal.Signals) -> None:
    with _running("--hub", "hub:2", "--consumer-group", "second") as (process, connection, _):
        with producer(connection + "EntityPath=hub") as client:
            client.send_batch([_event()] * 3, partition_id="1")
        with reader(connection + "EntityPath=hub", "1", group="second") as events:
            assert numbers(events.read(3)) == [0, 1, 2]
            process.send_signal(number)
            assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def _event() -> object:
    from azure.eventhub import EventData

    return EventData(b"x")


def test_the_service_s_limits_are_options() -> None:
    limits = ("--max-connections", "2", "--management-requests", "1", "--unsettled", "--idle-link-timeout", "1h")
    with _running("--hub", "hub:1", *limits) as (_, connection, port), EmulatorControl("127.0.0.1", port) as control:
        control.append("hub", 0, [b"x"] * 3)
        with reader(connection + "EntityPath=hub") as events, RawPeer(_port(connection)) as peer:
            assert numbers(events.read(3)) == [0, 1, 2]
            peer.open()
            with RawPeer(_port(connection)) as third, pytest.raises(EOFError):
                third.open()
            peer.attach_receiver("hub/ConsumerGroups/$Default/Partitions/0")
            assert peer.expect(Attach).snd_settle_mode == 0


def _port(connection: str) -> int:
    return int(re.search(r":(\d+);", connection)[1])  # type: ignore[index]


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    arguments = ("--hub", "hub:1", "--data", str(tmp_path))
    with _running(*arguments) as (process, connection, _), producer(connection + "EntityPath=hub") as client:
        for _ in range(50):
            client.send_event(_event(), partition_id="0")  # type: ignore[arg-type]
        process.kill()
        process.wait(DEADLINE)
    with _running(*arguments) as (_, connection, port), EmulatorControl("127.0.0.1", port) as control:
        assert control.partition_state("hub", 0).next_sequence_number == 50
        control.append("hub", 0, [b"after"])
        with reader(connection + "EntityPath=hub") as events:
            assert numbers(events.read(51)) == list(range(51))


def test_a_geo_replicated_hub_is_promoted_through_the_control_port() -> None:
    with (
        _running("--hub", "hub:1", "--geo-replicated") as (_, connection, port),
        EmulatorControl("127.0.0.1", port) as control,
    ):
        control.append("hub", 0, [b"x"] * 5)
        control.promote("hub", {0: 2}, lost_offsets="refuse")
        assert control.partition_state("hub", 0).next_sequence_number == 3
        with pytest.raises(ValueError, match="'other' is not a valid LostOffsets"):
            control.promote("hub", lost_offsets="other")
        with reader(connection + "EntityPath=hub") as events:
            assert all(":" in str(event.offset) for event in events.read(3))


def test_a_directory_serves_one_emulator_at_a_time(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path):
        refused = subprocess.run([*COMMAND, "--port", "0", "--data", str(tmp_path)], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "in use by another emulator" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--hub", "hub"], "Error: --hub 'hub': expected NAME:PARTITIONS, for example flights:8"),
        (["--hub", "hub:0"], "Error: --hub 'hub:0': hub 'hub' with 0 partitions: allowed are 1 to 2000"),
        (["--hub", "hub:2", "--hub", "Hub:4"], "Error: --hub Hub:4: event hub Hub is given twice"),
        (["--hub", "hub:٣"], "Error: --hub 'hub:٣': expected NAME:PARTITIONS"),
        (["--port", "70000"], "Error: --port 70000: allowed are 0 to 65535"),
        (
            ["--retention", "week"],
            "Error: --retention 'week': expected a number over 0 and s, m, h or d",
        ),
        (["--idle-link-timeout", "0s"], "Error: --idle-link-timeout '0s': expected a number over 0 and s, m, h or d"),
        (["--max-connections", "0"], "Error: --max-connections 0: allowed are numbers from 1 on"),
        (["--management-requests", "-1"], "Error: --management-requests -1: allowed are numbers from 0 on"),
        (["--sas-key", "=env:X"], "Error: --sas-key: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--sas-key", "reader=c2VjcmV0"], "Error: --sas-key: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (
            ["--sas-key", "reader=env:NO_SUCH_KEY"],
            "Error: --sas-key: there is no key where that of 'reader' is said to be",
        ),
        (
            ["--max-connections", "0", "--sas-key", f"reader=file:{os.devnull}"],
            "Error: --sas-key: there is no key where that of 'reader'",
        ),
        (["--port", "0", "--consumer-group", "a b"], "Error: consumer group 'a b': allowed are letters"),
    ],
)
def test_invalid_arguments_are_an_error_of_one_line(arguments: list[str], text: str) -> None:
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 2
    assert ended.stderr.startswith(text)
    assert ended.stderr.count("\n") == 1
    assert "c2VjcmV0" not in ended.stderr


@pytest.mark.parametrize("kind", ["env", "file"])
def test_keys_are_given_by_reference(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READERS_KEY", "cmlnaHQ=")
    (tmp_path / "key").write_text("cmlnaHQ=\n")
    place = "READERS_KEY" if kind == "env" else tmp_path / "key"
    with (
        _running("--hub", "hub:1", "--sas-key", f"reader={kind}:{place}") as (_, connection, port),
        EmulatorControl("127.0.0.1", port, key="cmlnaHQ=") as control,
    ):
        assert "SharedAccessKeyName=reader;SharedAccessKey=(not shown);" in connection
        connection = connection.replace("(not shown)", "cmlnaHQ=")
        control.append("hub", 0, [b"x"])
        with reader(connection + "EntityPath=hub") as events:
            assert numbers(events.read(1)) == [0]
        wrong = connection.replace("cmlnaHQ=", "d3Jvbmc=") + "EntityPath=hub"
        client = EventHubConsumerClient.from_connection_string(wrong, "$Default", retry_total=0)
        with client, pytest.raises(AuthenticationError):
            client.get_partition_ids()


def test_a_port_in_use_is_an_error_of_one_line(emulator: Emulator) -> None:
    command = [*COMMAND, "--port", str(emulator.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 1
    assert "address already in use" in ended.stderr.lower()
    assert "--port 0 takes a free one" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_text(content)
    command = [*COMMAND, "--port", "0", "--hub", "hub:1", "--certificate", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 1
    assert f"--certificate {file}: expected a PEM file of a private key" in ended.stderr
    assert ended.stderr.count("\n") == 1
