"""`ehbalance status --partition` asks the event hub about a reader outside the group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.receiver import Receiver
from tests.ops.command import Command, kept
from tests.ops.conftest import ehbalance
from tests.query.queries import Group
from tests.query.support import HUB

__all__ = ["ehbalance"]


def test_a_reader_outside_the_group_is_found(
    group: Group, emulator: Emulator, ehbalance: Command, tmp_path: Path, rival: Callable[..., Receiver]
) -> None:
    group.append(10)
    group.query("a")
    group.wait_owned(8)
    rival(50, "3")
    connection = kept(emulator.connection_string(HUB), tmp_path)
    printed = ehbalance.succeeds("status", group.table, "--partition", "3", *connection).out
    assert "reads partition 3 with owner level 50" in " ".join(printed.split())
