"""Fixtures for tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Handover, Lease, Member
from spark_ehbalance.group.position import Position
from tests.ops.command import KEY, Command, connection_arguments
from tests.ops.groups import HUB, Group, change


@pytest.fixture
def ehbalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """An emulator that checks keys."""
    with Emulator({HUB: 4}, consumer_groups=["other"], sas_keys={"reader": KEY}) as running:
        yield running


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a table."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture
def connection(emulator: Emulator, secrets: Path) -> Sequence[str]:
    return connection_arguments(emulator.connection_string(HUB), secrets)


@pytest.fixture
def group(ehbalance: Command, table: Path, connection: Sequence[str]) -> Group:
    """A group without a lease table."""
    return Group(ehbalance, table, connection)


@pytest.fixture
def used(group: Group) -> Group:
    group("init")
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
    change(group.table, leases=leases, members=members)
    return group
