"""The commands with a lease table that has the positions of a hub which had the hub's name before."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.ops.groups import HUB, Group, fill


@pytest.fixture
def old(group: Group, emulator: Emulator, tmp_path: Path) -> Group:
    """A group with a position of each partition, whose hub was recreated."""
    (tmp_path / "first.json").write_text('{"0": 10, "1": 20, "2": 30, "3": 40}')
    fill(emulator, 100)
    group.done("init", "--positions", tmp_path / "first.json")
    before = group.state.table
    assert group("seek", "--all", "--to", "7").code == 0
    assert group.state.table == before is not None, "the table's hub is the same one"
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 4)
    fill(emulator, 100)
    return group


def test_a_table_of_another_hub_is_refused(old: Group, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"0": 5}')
    before = old.state
    for command in ("init", "seek 0 --to earliest --force", f"seek --positions {tmp_path}/p.json"):
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
