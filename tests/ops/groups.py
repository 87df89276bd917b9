"""A group for tests of commands: a lease table, an emulator that checks keys, and the command `ehbalance`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.ops.command import Command, Outcome

HUB = "hub"

#: The commands that accept options for the event hub.
_HUB_COMMANDS = {"init", "seek"}


def state(table: Path) -> Snapshot:
    with DeltaStore(str(table)) as store:
        return store.read()


def change(table: Path, /, **parts: Any) -> None:
    """Replace parts of the state; in `leases` and `members`, only the given entries."""
    with DeltaStore(str(table)) as store:
        base = store.read()
        merged = {name: {**getattr(base, name), **parts[name]} for name in ("leases", "members") if name in parts}
        store.write(base, replace(base, **parts | merged))


def record(table: Path, *changes: OwnershipChange) -> None:
    with DeltaStore(str(table)) as store:
        store.record(changes)


def history(table: Path) -> list[OwnershipChange]:
    with DeltaStore(str(table)) as store:
        return list(store.history())


@dataclass(frozen=True)
class Group:
    """Runs commands on the lease table at `table`, with the arguments `connection` if they use the hub."""

    ehbalance: Command
    table: Path
    connection: Sequence[str]

    def __call__(self, command: str, *arguments: object) -> Outcome:
        return self.ehbalance(command, self.table, *arguments, *self._hub(command))

    def done(self, command: str, *arguments: object) -> str:
        outcome = self(command, *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    def json(self, command: str, *arguments: object) -> Any:
        return json.loads(self(command, *arguments, "--json").out)

    def fails(self, code: int, command: str, *arguments: object) -> str:
        return self.ehbalance.fails(code, command, self.table, *arguments, *self._hub(command))

    def _hub(self, command: str) -> Sequence[str]:
        return self.connection if command in _HUB_COMMANDS else ()

    @property
    def state(self) -> Snapshot:
        return state(self.table)

    @property
    def positions(self) -> dict[str, int]:
        """Partition → the sequence number at which reading continues."""
        return {p: lease.checkpoint.next for p, lease in self.state.leases.items() if lease.checkpoint}


def fill(emulator: Emulator, events: int) -> None:
    for partition in range(4):
        emulator.append(HUB, partition, [b"event"] * events)
