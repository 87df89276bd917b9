"""A group on the command line: its lease table, the event hub of an emulator that checks keys, and `ehbalance`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Handover, Lease, Member
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import KEY, Command, Outcome, kept

HUB = "hub"

#: The commands that are told how to reach the event hub.
_ASK_THE_HUB = {"check", "init", "seek", "import-checkpoints", "export-checkpoints"}


def state(table: Path) -> Snapshot:
    with DeltaStore(str(table)) as store:
        return store.read()


def change(table: Path, /, **parts: Any) -> None:
    """Replace parts of the state; of `leases` and `members` those that are given."""
    with DeltaStore(str(table)) as store:
        base = store.read()
        merged = {name: {**getattr(base, name), **parts[name]} for name in ("leases", "members") if name in parts}
        store.write(base, replace(base, **parts | merged))


def record(table: Path, *changes: OwnershipChange) -> None:
    """Write rows of the history."""
    with DeltaStore(str(table)) as store:
        store.record(changes)


def history(table: Path) -> list[OwnershipChange]:
    with DeltaStore(str(table)) as store:
        return list(store.history())


@dataclass(frozen=True)
class Group:
    """Runs commands for the lease table at `table`, with the arguments `connection` where they ask the hub."""

    ehbalance: Command
    table: Path
    connection: Sequence[str]

    def __call__(self, command: str, *arguments: object) -> Outcome:
        return self.ehbalance(command, self.table, *arguments, *self._hub(command))

    def done(self, command: str, *arguments: object) -> str:
        """The output of a command that succeeds without a warning."""
        outcome = self(command, *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    def json(self, command: str, *arguments: object) -> Any:
        return json.loads(self(command, *arguments, "--json").out)

    def fails(self, code: int, command: str, *arguments: object) -> str:
        return self.ehbalance.fails(code, command, self.table, *arguments, *self._hub(command))

    def _hub(self, command: str) -> Sequence[str]:
        return self.connection if command in _ASK_THE_HUB else ()

    @property
    def state(self) -> Snapshot:
        return state(self.table)

    @property
    def positions(self) -> dict[str, int]:
        """The sequence number at which reading of each partition continues."""
        return {p: each.checkpoint.next for p, each in self.state.leases.items() if each.checkpoint}


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """An emulator that checks keys."""
    with Emulator({HUB: 4}, consumer_groups=["other"], sas_keys={"reader": KEY}) as running:
        yield running


def fill(emulator: Emulator, events: int) -> None:
    """Append that many events to each partition."""
    for partition in range(4):
        emulator.append(HUB, partition, [b"event"] * events)


@pytest.fixture
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a table."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture
def connection(emulator: Emulator, secrets: Path) -> Sequence[str]:
    return kept(emulator.connection_string(HUB), secrets)


@pytest.fixture
def group(ehbalance: Command, table: Path, connection: Sequence[str]) -> Group:
    """A group without a lease table."""
    return Group(ehbalance, table, connection)


@pytest.fixture
def used(group: Group) -> Group:
    """A running group."""
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
