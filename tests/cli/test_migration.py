"""`ehbalance import-checkpoints --from-spark` and `export-checkpoints --starting-positions`: the Scala connector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.cli.command import Command, kept
from tests.cli.groups import Group, history
from tests.source.scala_folders import begin_at, scala_folder

HUB = "Flights"


@pytest.fixture
def connection(emulator: Emulator, tmp_path: Path) -> Sequence[str]:
    emulator.add_hub(HUB, 4)
    for partition in range(4):
        emulator.append(HUB, str(partition), [b"event"] * 100)
    return kept(emulator.connection_string(HUB), tmp_path)


def test_a_query_of_the_connector_is_gone_on_with(group: Group, table: Path, tmp_path: Path) -> None:
    folder = scala_folder(
        tmp_path / "checkpoint", {HUB: {0: 10, 1: 0, 2: 100}}, {HUB: {0: 30, 1: 0, 2: 100}}, unfinished=1
    )
    command = ("import-checkpoints", "--from-spark", folder)
    group.done(*command, "--dry-run")
    assert not table.exists()
    printed = group.done(*command, "--why", "we move")
    for row in ("0 9 - - continues at 10", "1 - - - continues at 0", "2 99 - - continues at 100", "3 - - - nothing"):
        assert row in " ".join(printed.replace("│", " ").split())
    assert "No position is known of partition 3" in printed
    assert group.positions == {"0": 10, "1": 0, "2": 100}
    assert group.state.leases["3"].checkpoint is None, "known, so that it does not count as added later"
    assert group.state.version == 0, "all in one commit"
    assert {each.why for each in history(table)} == {f"imported from {folder}: we move"}

    (folder / "commits" / "1").write_text("v1\n{}")
    assert group(*command).code == 0
    assert group.positions == {"0": 30, "1": 0, "2": 100}


def test_the_positions_are_given_back_as_the_connector_takes_them(
    group: Group, ehbalance: Command, table: Path, tmp_path: Path
) -> None:
    folder = scala_folder(tmp_path / "checkpoint", {HUB: {0: 10}}, unfinished=1)
    begin_at(folder, {HUB: {0: 5, 1: 0}})
    group("import-checkpoints", "--from-spark", folder)
    command = ("export-checkpoints", table, "--starting-positions")
    printed = json.loads(ehbalance(*command, "--event-hub-name", HUB).out)
    # As `EventHubsConf.startingPositions` reads them: `Map[String, EventPosition]`, each key a `NameAndPartition`.
    assert {(key, value["seqNo"]) for key, value in printed.items()} == {
        ('{"ehName": "Flights", "partitionId": 0}', 5),
        ('{"ehName": "Flights", "partitionId": 1}', 0),
    }
    assert printed['{"ehName": "Flights", "partitionId": 0}'] == {
        "offset": None,
        "seqNo": 5,
        "enqueuedTime": None,
        "isInclusive": True,
    }
    assert "--event-hub-name is not set: allowed is flights" in ehbalance.fails(2, *command)
    assert "--event-hub-name='other' is wrong" in ehbalance.fails(2, *command, "--event-hub-name", "other")


def test_a_checkpoint_of_the_wrong_kind_names_the_right_command(
    group: Group, ehbalance: Command, table: Path, tmp_path: Path
) -> None:
    folder = scala_folder(tmp_path / "checkpoint", {HUB: {0: 10}})
    error = group.fails(2, "init", "--from-checkpoint", folder)
    assert "by `ehbalance import-checkpoints`" in error
    folder = scala_folder(tmp_path / "beyond", {HUB: {0: 101}})
    error = group.fails(2, "import-checkpoints", "--from-spark", folder)
    assert f"--from-spark={folder} is of another event hub" in error
    assert "has read up to 101 of partition 0, and the hub ends before 100" in error
    assert not table.exists()
