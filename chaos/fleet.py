"""A hub under load, and the queries that share it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import deltalake

from chaos.account import Sink
from chaos.processes import QueryProcess, wait_for
from chaos.producer import Producer
from chaos.query import Settings
from chaos.results import log
from chaos.tokens import LIFE as TOKEN_LIFE
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.backends import open_store

HUB, COPY = "hub", "copy"

#: Seconds for which a token is valid.
LIFE = 20.0

#: The leader can remove the data file of a version while it is being read; the next attempt reads a newer version.
_READ_ATTEMPTS = 3

#: Number of batches that cover at least the last minute: three queries on two cores write two or three per second.
_RECENT_BATCHES = 400

#: Seconds that Spark may take to start on a busy machine.
START_TIMEOUT = 240.0


#: The columns that the sink needs, in a different order from the source's.
_COLUMNS = "partitionKey string, sequenceNumber long, body string, partition string"


class Fleet:
    """A context manager that runs an emulator with a hub, the hub's producer, and query processes, and ends them all.

    All files are in a temporary folder, or in `keep`, which is not removed. With `exactly_once`, the queries also write
    to one Delta table, `target`; with `copy`, they also write to the hub `COPY`. With `tokens`, the queries use tokens
    that expire after `LIFE` seconds. With a `seed`, which settings each process reads with is drawn from the seed.
    """

    def __init__(
        self,
        partitions: int,
        rate: float,
        options: Mapping[str, str],
        trigger: str = "",
        keep: Path | None = None,
        *,
        exactly_once: bool = False,
        tokens: bool = False,
        copy: bool = False,
        seed: int | None = None,
    ) -> None:
        self._exactly_once, self._tokens, self._copy, self._seed = exactly_once, tokens, copy, seed
        self._partitions, self._rate = partitions, rate
        self._options, self._trigger, self._keep = dict(options), trigger, keep
        self._stack = ExitStack()
        self._processes: list[QueryProcess] = []

    def __enter__(self) -> Fleet:
        self.folder = Path(tempfile.mkdtemp(prefix="ehbalance-chaos-")) if self._keep is None else self._keep.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._keep is None:
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "rows").mkdir()
        file = logging.FileHandler(self.folder / "chaos.log")
        logging.getLogger().addHandler(file)
        self._stack.callback(logging.getLogger().removeHandler, file)
        hubs = {HUB: self._partitions} | ({COPY: self._partitions} if self._copy else {})
        self.emulator = self._stack.enter_context(Emulator(hubs, tls=self._tokens))
        self._connection = {"connectionString": self.emulator.connection_string(HUB)}
        if self._tokens:
            os.environ[TOKEN_LIFE] = str(LIFE)
            self._connection = {
                "fullyQualifiedNamespace": "127.0.0.1",
                "eventHubName": HUB,
                "credential": "chaos.tokens:short_tokens",
                "customEndpointAddress": f"localhost:{self.emulator.port}",
                "caFile": str(self.emulator.ca_file),
            }
        self.producer = Producer(self.emulator, HUB, self._partitions, self._rate)
        self._stack.callback(self.producer.stop)
        self._stack.callback(self._kill_all)
        self.table = self.folder / "leases"
        self.store = open_store(str(self.table))
        self.sink = Sink(self.folder / "rows")
        self.target = str(self.folder / "target") if self._exactly_once else ""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def launch(self, name: str, **more: str) -> QueryProcess:
        """Start a process that can run queries with `more` options. It gets ready in the background."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        rows = folder / "rows"
        if not rows.exists():
            rows.symlink_to(self.folder / "rows")
        options = {
            **self._connection,
            "startingPosition": "earliest",
            "leaseTable": str(self.table),
            **self._options,
            **more,
        }
        copy = self.emulator.connection_string(COPY) if self._copy else ""
        run = len(list(self.folder.glob(f"{name}-*.log")))
        drawn = {} if self._seed is None else _draw_settings(random.Random(f"{self._seed} {name} {run}"))
        if drawn:
            log(f"  {name}: {drawn}")
        settings = Settings(str(folder), options, self._trigger, self.target, copy, **drawn)
        process = QueryProcess(settings, self.folder / f"{name}-{run}.log")
        self._processes.append(process)
        return process

    def target_rows(self) -> list[tuple[str, int, str]]:
        """The partition, sequence number and body of each row in the target."""
        if not deltalake.DeltaTable.is_deltatable(self.target):
            return []
        table = deltalake.DeltaTable(self.target).to_pyarrow_table(columns=["partition", "sequenceNumber", "body"])
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def snapshot(self) -> Snapshot:
        """The group's state. Raises `StoreError` while the table is unreachable."""
        for _ in range(_READ_ATTEMPTS):
            with contextlib.suppress(StoreUnavailableError):
                return self.store.read()
        return self.store.read()

    def shared_by(self, *names: str) -> bool:
        """Whether these queries own all partitions as evenly as possible, and no handover is pending."""
        leases = self.snapshot().leases.values() if self.store.exists() else ()
        owned = Counter(lease.owner for lease in leases)
        least, most = self._partitions // len(names), -(-self._partitions // len(names))
        return (
            sum(owned.values()) == self._partitions
            and owned.keys() == {f"{name}.1" for name in names}
            and all(least <= count <= most for count in owned.values())
            and not any(lease.handover for lease in leases)
        )

    def read_by_owners(self) -> bool:
        """Whether each partition's owner has recently written a batch that contains the partition, with its current
        epoch."""
        read = {
            (batch.owner, partition, epoch)
            for batch in self.sink.batches[-_RECENT_BATCHES:]
            for partition, epoch in batch.epochs.items()
        }
        return all((lease.owner, lease.partition, lease.epoch) in read for lease in self.snapshot().leases.values())

    def checkpointed(self) -> bool:
        """Whether the group's checkpoints cover all events that were sent."""
        leases = self.snapshot().leases
        return all(
            (lease := leases.get(partition)) is not None
            and (lease.checkpoint.next if lease.checkpoint else 0) >= len(numbers)
            for partition, numbers in self.producer.sent.items()
        )

    def wait_for(self, condition: Any, what: str, timeout: float = START_TIMEOUT) -> None:
        """Wait for `condition`, and meanwhile read the files that the queries write. Raises `TimeoutError`."""

        def is_met() -> bool:
            self.sink.poll()
            return bool(condition())

        wait_for(is_met, what, timeout)

    def _kill_all(self) -> None:
        for process in self._processes:
            process.kill()


def _draw_settings(random: random.Random) -> dict[str, Any]:
    """Draw settings that must not affect the rows that a process writes."""
    return {"columns": random.choice(["", _COLUMNS]), "unix_socket": random.choice([True, False])}
