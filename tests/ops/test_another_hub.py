"""The commands with a lease table that has the positions of a hub which had the hub's name before."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.ops.groups import HUB, Group, fill, state
from tests.ops.test_positions import events

__all__ = ["events"]


def hub_time(table: Path) -> int | None:
    found = state(table).table
    assert found is not None
    return found.hub_created_ms


def make_anew(emulator: Emulator) -> None:
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 4)
    fill(emulator, 100)


@pytest.fixture
def restored(group: Group, tmp_path: Path) -> Group:
    """A group with a position of each partition."""
    (tmp_path / "first.json").write_text('{"0": 10, "1": 20, "2": 30, "3": 40}')
    group.done("init", "--positions", tmp_path / "first.json")
    return group


@pytest.fixture
def old(restored: Group, emulator: Emulator) -> Group:
    """The same, but the hub has been recreated since."""
    assert hub_time(restored.table) is not None
    make_anew(emulator)
    return restored


@pytest.mark.parametrize("command", ["init", "seek 0 --to earliest --force", "seek --positions"])
def test_a_table_of_another_hub_is_refused(old: Group, tmp_path: Path, command: str) -> None:
    if command.endswith("--positions"):
        (tmp_path / "p.json").write_text('{"0": 5}')
        command += f" {tmp_path / 'p.json'}"
    before = old.state
    message = old.fails(1, *command.split())
    assert f"lease table {old.table}: it has the positions of event hub hub of localhost:" in message
    assert "and this one was created 20" in message
    assert "Nothing was written: set a new leaseTable" in message
    assert old.state == before


def test_to_seek_all_partitions_moves_the_table_to_the_new_hub(old: Group) -> None:
    before = old.state.leases
    assert old("seek", "--all", "--to", "earliest").code == 0
    after = old.state.leases
    assert {each.checkpoint and each.checkpoint.next for each in after.values()} == {0}
    assert all(after[p].epoch == before[p].epoch + 1 for p in before), "what was read before does not count any more"
    assert old("init").code == 0
    assert old("seek", "0", "--to", "5").code == 0


def test_to_seek_in_the_same_hub_changes_nothing_but_positions(restored: Group) -> None:
    before = hub_time(restored.table)
    assert restored("seek", "--all", "--to", "7").code == 0
    assert hub_time(restored.table) == before is not None
