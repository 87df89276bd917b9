"""Leases expire while the machine sleeps, although its processes do not run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_ehbalance import clock
from spark_ehbalance.emulator import Emulator
from tests.query.queries import Group
from tests.waiting import wait_until


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="a clock of Linux")
def test_leases_expire_while_the_machine_sleeps(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = [0.0]

    def clock_gettime(kind: int) -> float:
        return time.monotonic() + (slept[0] if kind == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(clock.time, "clock_gettime", clock_gettime)  # type: ignore[attr-defined]
    group = Group(emulator, tmp_path, 1)
    query = group.query("a", leaseDuration="30s")
    wait_until(query.owned, "it owns the partition")
    keeper, _, _ = query.planner.parts
    with keeper.engine():  # before the driver thread can read the table
        assert keeper.readable()
        slept[0] = 31.0
        assert not keeper.readable()
    wait_until(query.owned, "it has read the table")
