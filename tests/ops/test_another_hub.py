"""Commands on a lease table with positions in an earlier hub of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.ops.command import assert_error
from tests.ops.groups import HUB, Group, fill


@pytest.fixture
def old_group(group: Group, emulator: Emulator, tmp_path: Path) -> Group:
    """A group with a position in every partition whose hub was recreated."""
    (tmp_path / "first.json").write_text('{"0": 10, "1": 20, "2": 30, "3": 40}')
    fill(emulator, 100)
    group.done("init", "--positions", tmp_path / "first.json")
    before = group.state.table
    assert group("seek", "--all", "--to", "7").code == 0
    assert group.state.table == before is not None, "it is the same hub"
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 4)
    fill(emulator, 100)
    return group


def test_table_of_another_hub_is_rejected(old_group: Group, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"0": 5}')
    before = old_group.state
    for command in ("init", "seek 0 --to earliest --force", f"seek --positions {tmp_path}/p.json"):
        error = old_group.fails(1, *command.split())
        assert_error(error, "EHB_HUB_RECREATED", "lease table", "event hub hub of localhost, created 20")
        assert error.count("created 20") == 2, "of both hubs"
    assert old_group.state == before


def test_seek_all_moves_the_table_to_the_new_hub(old_group: Group) -> None:
    before = old_group.state.leases
    assert old_group("seek", "--all", "--to", "earliest").code == 0
    after = old_group.state.leases
    assert {lease.checkpoint and lease.checkpoint.next for lease in after.values()} == {0}
    assert all(after[p].epoch == before[p].epoch + 1 for p in before), "earlier progress no longer counts"
    assert old_group("init").code == 0
    assert old_group("seek", "0", "--to", "5").code == 0
