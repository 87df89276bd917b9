"""Fixtures for the tests of a group: a hub that checks keys, and a lease table of a running group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.model import Handover, Lease, Member
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import KEY, Command, kept

HUB = "hub"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """An emulator that checks keys."""
    with Emulator({HUB: 4}, consumer_groups=["other"], sas_keys={"reader": KEY}) as running:
        yield running


@pytest.fixture
def connection(emulator: Emulator, secrets: Path) -> Sequence[str]:
    return kept(emulator.connection_string(HUB), secrets)


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a table."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture
def used(ehbalance: Command, table: Path, connection: Sequence[str]) -> Path:
    """The table of a running group."""
    ehbalance("init", table, *connection)
    with DeltaStore(str(table)) as store:
        base = store.read()
        ms = 1_770_000_000_000
        leases = {
            "0": Lease("0", "alice", 3, 17, ms, ms, Position(4711, "offset"), Handover("bob", 30_000)),
            "1": Lease("1", "bob", 1, 5, ms, ms, Position(-1)),
            "2": Lease("2", None, 8, 2, ms, ms, Position(9)),
            "10": Lease("10"),
        }
        members = {
            "bob": Member("bob", "x", 2, renewed_at_ms=ms, started_at_ms=ms, host="host-b"),
            "alice": Member("alice", "y", 1, renewed_at_ms=ms, started_at_ms=ms, host="host-a"),
        }
        store.write(base, replace(base, leases=leases, members=members))
    return table
