"""Streaming queries without Spark: planners that use the emulator and a Delta table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.control_socket import PlannerAddress, send
from spark_ehbalance.query.offsets import StreamOffset, group_name
from spark_ehbalance.query.options import OPTIONS, SHARED, Options, stream_options
from spark_ehbalance.query.planner import Planner
from tests.query.support import HUB
from tests.waiting import wait_until

PARTITIONS = 8

#: (partition, sequence number)
Event = tuple[str, int]


class Query:
    """Spark's side of a planner: plans, logs and reads batches, and reports that they are finished.

    `logged` is the end of the last logged batch, `finished` the end of the last batch that the sink finished. `seen`
    contains the events read so far.
    """

    def __init__(
        self,
        planner: Planner,
        owner: str,
        finished: StreamOffset | None = None,
        unfinished: StreamOffset | None = None,
    ) -> None:
        self.planner = planner
        self.owner = owner
        self.finished = finished or StreamOffset(owner)
        self.logged = unfinished or self.finished
        self.seen: list[Event] = []
        self._stopped = False

    def plan(self, limit: int | None = None) -> StreamOffset | None:
        """Request the next batch and log it; returns None if there are no new events."""
        if self.planner.is_idle(self.finished):
            return None
        self.planner.finish(self.finished)
        end = self.planner.next_batch(self.finished, limit)
        if end is self.finished:
            return None
        self.logged = end
        return end

    def batch(self, limit: int | None = None) -> StreamOffset:
        """Wait for the next batch and return its end."""
        wait_until(lambda: self.plan(limit) is not None, "there is a batch")
        return self.logged

    def run(self, end: StreamOffset) -> list[OffsetRange]:
        """Read the batch that ends at `end` and let the sink finish it."""
        ranges = self.planner.ranges(end)
        self.seen += [(range_.partition, number) for range_ in ranges for number in range(range_.start, range_.end)]
        self.finished = self.logged = end
        return ranges

    def step(self, limit: int | None = None) -> int:
        """Run one batch if there are new events; returns its number of events."""
        before, end = len(self.seen), self.plan(limit)
        if end is not None:
            self.run(end)
        return len(self.seen) - before

    def read(self, count: int, limit: int | None = None) -> None:
        """Run batches until `count` events have been read in all."""
        wait_until(lambda: (self.step(limit) and False) or len(self.seen) >= count, f"{self.owner} has read {count}")

    def notify(self, finished: StreamOffset | None = None, *, leave: bool = False) -> bool | None:
        """Send the driver's control message, by default about the finished batch; returns the planner's answer."""
        end = finished or self.finished
        return send(self.planner.address or PlannerAddress(""), {"finished": end.to_json(), "leave": leave})

    def owned(self) -> set[str]:
        return set(self.planner.readable())

    def stop(self) -> None:
        if not self._stopped:
            self.planner.stop()
        self._stopped = True


class Group:
    """An emulated hub, its lease table, and the queries that share it."""

    def __init__(self, emulator: Emulator, path: Path, partitions: int = PARTITIONS) -> None:
        emulator.add_hub(HUB, partitions)
        self.queries: list[Query] = []
        self.partitions = partitions
        self.emulator = emulator
        self.table = path / "leases"
        self.raw: dict[str, object] = {
            "connectionString": emulator.connection_string(HUB),
            "startingPosition": "earliest",
            "balanceInterval": "0.3s",
            "leaseDuration": "3s",
            "receiverTimeout": "20s",
        }
        self.processes: list[subprocess.Popen[str]] = []

    def options(self, *, shared: bool = True, **more: object) -> Options:
        raw = self.raw | {"leaseTable": self.table}
        if not shared:
            raw = {name: value for name, value in self.raw.items() if OPTIONS[name].only != SHARED}
        return stream_options({name: str(value) for name, value in (raw | more).items()})

    def query(
        self,
        owner: str = "a",
        finished: StreamOffset | None = None,
        unfinished: StreamOffset | None = None,
        *,
        shared: bool = True,
        **more: object,
    ) -> Query:
        options = self.options(shared=shared, **more)
        finished = finished or StreamOffset(owner, group=group_name(options.lease_table))
        self.queries.append(Query(start_planner(options, owner, finished, unfinished), owner, finished, unfinished))
        return self.queries[-1]

    def process(self, owner: str, **more: object) -> tuple[subprocess.Popen[str], StreamOffset]:
        """Start a planner in a separate process; returns the process and the first batch that it plans."""
        raw = {name: str(value) for name, value in (self.raw | {"leaseTable": self.table} | more).items()}
        command = [sys.executable, "-m", "tests.query.member", owner, json.dumps(raw)]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        out = self.processes[-1].stdout
        assert out is not None
        return self.processes[-1], StreamOffset.from_json(json.loads(out.readline()))

    def append(self, count: int, partitions: int = PARTITIONS, first: int = 0) -> None:
        for partition in range(first, partitions):
            self.emulator.append(HUB, partition, [b"x"] * count)

    def exists(self) -> bool:
        """Whether the lease table exists."""
        with DeltaStore(str(self.table)) as store:
            return store.exists()

    def snapshot(self) -> Snapshot:
        """The newest version of the lease table."""
        with DeltaStore(str(self.table)) as store:
            return store.read()

    def leases(self) -> Mapping[str, Lease]:
        return self.snapshot().leases

    def wait_owned(self, *counts: int) -> None:
        """Wait until the most recently started queries own `counts` partitions."""
        wait_until(lambda: tuple(len(query.owned()) for query in self.queries[-len(counts) :]) == counts, f"{counts}")

    def order(self, *orders: Transition) -> None:
        """Write these transitions to the table as an operator."""
        with DeltaStore(str(self.table)) as store:
            refused = commit(store, store.read(), orders).rejected
            assert not refused

    def checkpoints(self) -> dict[str, int]:
        """Each partition's next sequence number according to the lease table."""
        return {p: lease.checkpoint.next if lease.checkpoint else -1 for p, lease in self.leases().items()}

    def everything(self) -> Counter[Event]:
        """Every event in the hub, counted once."""
        ends = {str(p): self.emulator.partition_state(HUB, p).next_sequence_number for p in range(self.partitions)}
        return Counter((p, number) for p, end in ends.items() for number in range(end))

    def close(self) -> None:
        for query in self.queries:
            query.stop()
        for process in self.processes:
            process.kill()
            process.communicate()
