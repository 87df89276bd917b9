"""Four processes write one Delta table, from snapshots that may be old: what must hold in every version of the table.

The pure module is tested like this in `test_transitions_stateful.py`; here the store is real, and the races are.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_ehbalance.errors import ConflictError
from spark_ehbalance.group.changes import (
    AddPartitions,
    CancelHandover,
    Checkpoint,
    Claim,
    Drain,
    HandOver,
    Heartbeat,
    Join,
    LeaseTransition,
    Leave,
    Release,
    Renew,
    RequestHandover,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.model import Author, Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import SCHEMA, from_table
from tests.lease_table.contenders import line_up, wait_for_the_others
from tests.lease_table.store_conformance import ANN, GROUP

PROCESSES, PARTITIONS, COMMITS, SEED = 4, 6, 80, 1
NAMES = [f"member-{number}" for number in range(PROCESSES - 1)]  # so that two of them have the same


@dataclass(frozen=True)
class Written:
    """What one process wrote as `version`: the state as it believes it to be, and what was accepted."""

    version: int
    leases: dict[str, Lease]
    members: dict[str, Member]
    accepted: tuple[Transition, ...]


class Recording(DeltaStore):
    """Keeps what it has written last."""

    written: Snapshot | None = None

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        self.written = super().write(base, new)
        return self.written


class Worker:
    """A process that does whatever a member might do, and what none should."""

    def __init__(self, uri: str, number: int, seed: int) -> None:
        self._rng = random.Random(seed * 100 + number)
        self._store = Recording(uri)
        self._name, self._number, self._lives = NAMES[number % len(NAMES)], number, 0
        self._author = self._new_life()
        self.log: list[Written] = []

    def run(self, commits: int) -> list[Written]:
        seen = self._write(self._store.read(), [Join(by=self._author, at_ms=1)])
        while len(self.log) < commits:
            mine = seen.members.get(self._name)
            if (mine is None or mine.incarnation != self._author.incarnation) and self._rng.random() < 0.3:
                self._author = self._new_life()
                seen = self._write(seen, [Join(by=self._author, at_ms=1)])
                continue
            wanted = [self._anything(seen) for _ in range(self._rng.randint(1, 6))]
            if self._rng.random() < 0.3:
                wanted.append(Heartbeat(by=self._author, at_ms=1))
            after = self._write(seen, wanted)
            if self._rng.random() < 0.8:  # else the next decisions are made on what is old by then
                seen = after
        self._store.close()
        return self.log

    def _new_life(self) -> Author:
        self._lives += 1
        return Author(self._name, f"{self._number}-{self._lives}")

    def _anything(self, seen: Snapshot) -> Transition:
        rng, by = self._rng, self._author
        lease = rng.choice(list(seen.leases.values()))
        it: dict[str, Any] = {"by": by, "at_ms": 1, "partition": lease.partition, "epoch": lease.epoch}
        last = lease.checkpoint.sequence_number if lease.checkpoint else -1
        choices: list[Transition] = [
            Claim(**it, unchanged_counter=lease.counter if rng.random() < 0.2 else None),
            Claim(**it, overdue_handover=lease.handover),
            Checkpoint(**it, position=Position(last + rng.randint(0, 5))),
            Checkpoint(**it, position=Position(last + rng.randint(-3, 3))),
            Renew(**it),
            RequestHandover(**it, to=rng.choice(NAMES), timeout_ms=1),
            HandOver(**it),
            CancelHandover(**it),
            Release(**it),
        ]
        if rng.random() < 0.05:
            choices = [Steal(**it), Leave(by=by, at_ms=1), Drain(by=by, at_ms=1, member=rng.choice(NAMES), undo=True)]
        if lease.owner == by.id and rng.random() < 0.5:
            choices = [each for each in choices if isinstance(each, (Checkpoint, HandOver, Renew))] or choices
        return rng.choice(choices)

    def _write(self, base: Snapshot, wanted: list[Transition]) -> Snapshot:
        try:
            outcome = commit(self._store, base, wanted, attempts=200)
        except ConflictError:  # `base` was not the last one read
            return self._store.read()
        after = outcome.after
        if after is self._store.written and (not self.log or self.log[-1].version != after.version):
            self.log.append(Written(after.version, dict(after.leases), dict(after.members), outcome.accepted))
        return after


def work(uri: str, seed: int, number: int) -> list[Written]:
    worker = Worker(uri, number, seed)
    wait_for_the_others()
    return worker.run(COMMITS)


def history_of(uri: str) -> list[Snapshot]:
    """Every version of the table from the first rows on, read from its log: quicker than 500 times a `DeltaTable`."""
    snapshots = []
    for version in range(1, DeltaTable(uri).version() + 1):
        actions = map(json.loads, Path(uri, "_delta_log", f"{version:020}.json").read_text().splitlines())
        files = [Path(uri, action["add"]["path"]) for action in actions if "add" in action]
        tables = [pq.read_table(file, partitioning=None) for file in files]
        snapshots.append(from_table(pa.concat_tables(tables).cast(SCHEMA), GROUP, version))
    return snapshots


def test_no_interleaving_gives_two_owners_or_goes_back(tmp_path: Path) -> None:
    uri = str(tmp_path / "leases")
    with DeltaStore(uri) as store:
        store.create(GROUP)
        names = tuple(str(number) for number in range(PARTITIONS))
        add = AddPartitions(by=ANN, at_ms=1, partitions=names, checkpoint=Position(-1))
        commit(store, store.read(), [Join(by=ANN, at_ms=1), add, Leave(by=ANN, at_ms=1)])
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn, initializer=line_up, initargs=(spawn.Barrier(PROCESSES),)) as pool:
        logs = list(pool.map(functools.partial(work, uri, SEED), range(PROCESSES), timeout=90))

    versions = history_of(uri)
    written = {each.version: each for log in logs for each in log}
    print(f"{len(versions)} versions; by process: {[len(log) for log in logs]}")
    assert sum(map(len, logs)) == len(written), "no version has two authors"
    assert written.keys() == {version.version for version in versions[1:]}, "every version has one"
    assert min(len(log) for log in logs) > 1, "everybody had a say"
    kinds = {type(each) for log in logs for entry in log for each in entry.accepted}
    assert kinds >= {Claim, Checkpoint, Renew, RequestHandover, HandOver, CancelHandover, Release, Join, Leave}

    owners: dict[tuple[str, int], set[str]] = defaultdict(set)
    for before, after in pairwise(versions):
        entry = written[after.version]
        assert (after.leases, after.members) == (entry.leases, entry.members), (
            "what was written is what its author believes to have written"
        )
        assert apply(before, entry.accepted).after.leases == after.leases, "and follows from the version before"
        for partition, lease in after.leases.items():
            compare(before.leases[partition], lease, entry.accepted)
            if lease.owner is not None:
                owners[partition, lease.epoch].add(lease.owner)
    assert all(len(each) == 1 for each in owners.values())
    assert max(epoch for _, epoch in owners) > 10


def compare(before: Lease, after: Lease, accepted: tuple[Transition, ...]) -> None:
    assert after.epoch >= before.epoch, "an epoch never falls"
    if after.owner not in (None, before.owner):
        assert after.epoch > before.epoch, "a change of owner raises it"
    assert before.checkpoint is not None
    assert after.checkpoint is not None
    assert after.checkpoint.sequence_number >= before.checkpoint.sequence_number, "a checkpoint never moves back"
    if before != after:
        of_it = [each for each in accepted if isinstance(each, LeaseTransition) and each.partition == after.partition]
        assert of_it, "nothing changes by itself"
        assert of_it[0].epoch == before.epoch, "nobody changes what it has not seen"
