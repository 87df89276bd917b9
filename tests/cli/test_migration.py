"""`ehbalance import-checkpoints --from-spark` and `export-checkpoints --starting-positions`: the Scala connector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.cli.command import Command, kept
from tests.source.scala_folders import begin_at, scala_folder

HUB = "Flights"


@pytest.fixture
def connection(emulator: Emulator, tmp_path: Path) -> Sequence[str]:
    emulator.add_hub(HUB, 4)
    for partition in range(4):
        emulator.append(HUB, str(partition), [b"event"] * 100)
    return kept(emulator.connection_string(HUB), tmp_path)


def positions(table: Path) -> dict[str, int]:
    """Where reading of each partition goes on."""
    with DeltaStore(str(table)) as store:
        return {p: each.checkpoint.next for p, each in store.read().leases.items() if each.checkpoint}


def test_a_query_of_the_connector_is_gone_on_with(
    ehbalance: Command, table: Path, connection: Sequence[str], tmp_path: Path
) -> None:
    folder = scala_folder(
        tmp_path / "checkpoint", {HUB: {0: 10, 1: 0, 2: 100}}, {HUB: {0: 30, 1: 0, 2: 100}}, unfinished=1
    )
    command = ("import-checkpoints", table, *connection, "--from-spark", folder)
    dry = ehbalance(*command, "--dry-run")
    assert (dry.code, dry.err, table.exists()) == (0, "", False)
    done = ehbalance(*command, "--why", "we move")
    assert (done.code, done.err) == (0, "")
    for row in ("0 9 - - goes on at 10", "1 - - - goes on at 0", "2 99 - - goes on at 100", "3 - - - nothing"):
        assert row in " ".join(done.out.replace("│", " ").split())
    assert "No position is known of partition 3" in done.out
    assert positions(table) == {"0": 10, "1": 0, "2": 100}
    with DeltaStore(str(table)) as store:
        assert store.read().version == 0, "all in one commit"
        assert {each.why for each in store.history()} == {f"imported from {folder}: we move"}

    (folder / "commits" / "1").write_text("v1\n{}")
    assert ehbalance(*command).code == 0
    assert positions(table) == {"0": 30, "1": 0, "2": 100}


def test_the_positions_are_given_back_as_the_connector_takes_them(
    ehbalance: Command, table: Path, connection: Sequence[str], tmp_path: Path
) -> None:
    folder = scala_folder(tmp_path / "checkpoint", {HUB: {0: 10}}, unfinished=1)
    begin_at(folder, {HUB: {0: 5, 1: 0}})
    ehbalance("import-checkpoints", table, *connection, "--from-spark", folder)
    command = ("export-checkpoints", table, "--starting-positions")
    done = ehbalance(*command, "--event-hub-name", HUB)
    assert (done.code, done.err) == (0, "")
    # As `EventHubsConf.startingPositions` reads them: `Map[String, EventPosition]`, each key a `NameAndPartition`.
    assert {(key, value["seqNo"]) for key, value in json.loads(done.out).items()} == {
        ('{"ehName": "Flights", "partitionId": 0}', 5),
        ('{"ehName": "Flights", "partitionId": 1}', 0),
    }
    assert json.loads(done.out)['{"ehName": "Flights", "partitionId": 0}'] == {
        "offset": None,
        "seqNo": 5,
        "enqueuedTime": None,
        "isInclusive": True,
    }
    assert "--event-hub-name is not set: allowed is flights" in ehbalance.fails(2, *command)
    assert "--event-hub-name='other' is wrong" in ehbalance.fails(2, *command, "--event-hub-name", "other")


def test_a_checkpoint_of_the_wrong_kind_names_the_right_command(
    ehbalance: Command, table: Path, connection: Sequence[str], tmp_path: Path
) -> None:
    folder = scala_folder(tmp_path / "checkpoint", {HUB: {0: 10}})
    error = ehbalance.fails(2, "init", table, *connection, "--from-checkpoint", folder)
    assert "by `ehbalance import-checkpoints`" in error
    folder = scala_folder(tmp_path / "beyond", {HUB: {0: 101}})
    error = ehbalance.fails(2, "import-checkpoints", table, *connection, "--from-spark", folder)
    assert f"--from-spark={folder} is of another event hub" in error
    assert "has read up to 101 of partition 0, and the hub ends before 100" in error
    assert not table.exists()
