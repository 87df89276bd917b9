"""Runs the documentation's blocks that are marked `run` against the emulator, like a reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.docs.conftest import HUB, Start, send
from tests.ops.command import Command


def test_emulator(start: Start) -> None:
    run = start("docs/emulator.md", {"5672": "0", "8443": "0", "emulator --hub": "emulator --port 0 --hub"})
    assert "localhost" in run.next()
    run.next()  # test_orders.py
    assert "1 passed" in run.next()
    assert run.next() == "1\n"
    assert "CA file" in run.next()
    run.next()


def test_orders(start: Start, hub: Emulator, tmp_path: Path, ehbalance: Command) -> None:
    """Operators' commands on the table of a running group."""
    send(hub, 80)
    secret = tmp_path / "secret"
    secret.write_text(hub.connection_string(HUB))
    table = tmp_path / "leases" / HUB
    ehbalance("init", table, "--connection-string", f"file:{secret}")
    with DeltaStore(str(table)) as store:
        base = store.read()
        jobs = {f"job-{number}": Member(f"job-{number}", "x", number) for number in (1, 2)}
        owned = {
            name: Lease(name, f"job-{2 - int(name) % 2}", 1, checkpoint=Position(4)) for name in map(str, range(8))
        }
        store.write(base, replace(base, leases=owned, members=jobs))
    replaced = {"file:…": f"file:{secret}", "env:…": f"file:{secret}", "2026-01-31T12:00:00Z": "earliest"}
    run = start("docs/commands.md", replaced)
    run.next()
    history = json.loads(ehbalance("history", table, "--json").out)
    assert {"Transfer", "PinTo", "Unpin", "Drain", "Seek"} <= {change["event"] for change in history}
