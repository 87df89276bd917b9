"""Many Python workers and short tokens: `python -m chaos.workers [plain] [leases] [callable] [--minutes 10]`.

Real Spark with enough cores to give each partition of a batch its own task and Python worker, and tokens that the
emulator lets expire after `--token-life` seconds. Events come in bursts, with pauses that are shorter or longer than a
token's life. Every event is counted, and after each batch the open connections of the query.

| query | partitions and workers | owner level | tokens |
|---|---|---|---|
| `plain` | 8 | none | shared access signatures |
| `leases` | 16 | the epochs | Entra ID, which azure-identity fetches for a managed identity |
| `callable` | 8, two queries share | the epochs | of a credential that a function makes, for hub and lease table |

The lease table of `callable` is in an Azurite that takes nothing but tokens. No event may be missing or duplicated, and
no batch may fail. At most partitions + workers + 1 connections a query may be open.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import spark_ehbalance
from chaos.processes import running, wait_for
from chaos.results import finish, log
from chaos.session import spark_session
from chaos.storage.azurite import azurite, make_container, token_options
from chaos.tokens import LIFE, IdentityEndpoint, ShortLived
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.certificates import make
from spark_ehbalance.source.datasource import EhBalanceDataSource, StreamReader, Task
from spark_ehbalance.source.options import Options, stream_options

HUB = "hub"
KEYS = {"reader": "emulator"}

#: Pauses between two bursts, in multiples of a token's life.
_PAUSES = (0.0,) * 8 + (0.01, 0.02, 0.05, 0.1, 0.3, 0.7, 1.1)

#: The most events of a partition in one burst.
_BURST = 60

#: Seconds for reading the rest on a busy machine.
_DRAIN_TIMEOUT = 120.0


@dataclass(frozen=True)
class Case:
    """What to run: one query, or several that share. There are as many cores as partitions. `credential` is the option;
    with one that is not azure-identity's the lease table is in a storage that takes tokens."""

    name: str
    partitions: int
    signatures: bool
    leases: bool
    credential: str = "managedIdentity"
    queries: int = 1

    @property
    def allowed(self) -> int:
        return 2 * self.partitions + self.queries

    @property
    def stored(self) -> bool:
        return ":" in self.credential


_CASES = (
    Case("plain", 8, True, False),
    Case("leases", 16, False, True),
    Case("callable", 8, False, True, "chaos.tokens:short_tokens", 2),
)
CASES = {each.name: each for each in _CASES}


@dataclass
class Outcome:
    """The events read, by (partition, sequence number), and the open connections after each batch."""

    read: Counter[tuple[str, int]] = field(default_factory=Counter)
    connections: list[int] = field(default_factory=list)
    seconds: float = 0.0
    workers: int = 0
    error: str = ""
    sent: set[tuple[str, int]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the queries' sinks

    @property
    def missing(self) -> int:
        return len(self.sent - self.read.keys())

    @property
    def duplicates(self) -> int:
        return sum(self.read.values()) - len(self.read)

    def passed(self, case: Case, batches: int) -> bool:
        lost = self.missing or self.duplicates or self.read.keys() - self.sent
        few = len(self.connections) < batches or self.workers < case.partitions / case.queries
        return not (self.error or lost or few or max(self.connections) > case.allowed)

    def summary(self, case: Case) -> str:
        return (
            f"{case.name}: {self.workers} workers, {case.partitions} partitions, {self.seconds:.0f} s, "
            f"{len(self.connections)} batches, {len(self.sent):,} events, {self.missing} missing, {self.duplicates} "
            f"duplicates; connections after a batch: at most {max(self.connections, default=0)}, allowed {case.allowed}"
            + (f"; failed: {self.error}" if self.error else "")
        )


def source(life: float) -> type[EhBalanceDataSource]:
    """The data source with tokens of `life` seconds, and with one task per partition even for few events."""

    class Reader(StreamReader):
        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            tasks: Any = super().partitions(start, end)
            return [Task((each,), task.owner) for task in tasks for each in task.ranges]

    class Source(EhBalanceDataSource):
        @classmethod
        def name(cls) -> str:
            return "ehbalance_short_tokens"

        def streamReader(self, schema: StructType) -> StreamReader:
            options: Options = stream_options(self.options)
            usual = options.connection
            short = ShortLived(usual.namespace, usual.hub, usual.identity, usual.connection_string, life=life)
            return Reader(replace(options, connection=short))

    return Source


def run(case: Case, folder: Path, *, minutes: float, batches: int, life: float, seed: int) -> Outcome:
    """Run `case` for at least `minutes` and `batches`, then let it read the rest."""
    outcome = Outcome()
    emulator = Emulator({HUB: case.partitions}, sas_keys=KEYS if case.signatures else None)
    with emulator as server, _leases(case, folder) as leases, contextlib.ExitStack() as stack:
        spark = spark_session(f"local[{case.partitions}]", folder, {})
        stack.callback(spark.stop)
        spark.dataSource.register(source(life))
        queries = [_start(spark, case, server, leases, folder / str(n), outcome) for n in range(case.queries)]
        active = lambda: all(each.isActive for each in queries)  # noqa: E731
        began, sent = time.monotonic(), dict.fromkeys(map(str, range(case.partitions)), 0)
        rng = random.Random(seed)
        with contextlib.suppress(TimeoutError):
            while time.monotonic() - began < 60 * minutes or len(outcome.connections) < batches:
                if not active():
                    break
                before = len(outcome.connections)
                _burst(server, sent, rng)
                ended = lambda: len(outcome.connections) > before or not active()  # noqa: B023, E731
                _pause(life * rng.choice(_PAUSES), ended)
                outcome.workers = max(outcome.workers, _workers())  # Spark ends those that are idle for a minute
            all_read = lambda: sum(outcome.read.values()) >= sum(sent.values())  # noqa: E731
            wait_for(lambda: all_read() or not active(), "all are read", _DRAIN_TIMEOUT)
        outcome.sent = {(partition, number) for partition, count in sent.items() for number in range(count)}
        outcome.seconds = time.monotonic() - began
        errors = [error for each in queries if (error := each.exception())]
        outcome.error = str(errors[0]).splitlines()[0] if errors else ""
        for each in queries:
            spark_ehbalance.stop(each)
    return outcome


@contextlib.contextmanager
def _leases(case: Case, folder: Path) -> Iterator[dict[str, str]]:
    if not case.stored:
        yield {"leaseTable": str(folder / "leases")} if case.leases else {}
        return
    certificate = make(folder)
    with azurite(certificate.server_file) as started:
        address = started.replace("127.0.0.1", "localhost")  # the certificate's name
        make_container(address, "tables", certificate.ca_file)
        options = token_options(address)
        yield {"leaseTable": "az://tables/leases"} | {f"storageOptions.{n}": v for n, v in options.items()}


def _start(
    spark: SparkSession, case: Case, server: Emulator, leases: dict[str, str], folder: Path, outcome: Outcome
) -> StreamingQuery:
    options = {"startingPosition": "earliest"} | leases
    if case.signatures:
        options["connectionString"] = server.connection_string(HUB)
    else:
        address = {"fullyQualifiedNamespace": f"127.0.0.1:{server.port}", "eventHubName": HUB}
        options |= {**address, "credential": case.credential}
    frame = spark.readStream.format("ehbalance_short_tokens").options(**options).load()

    def sink(batch: DataFrame, number: int) -> None:
        rows = batch.select("partition", "sequenceNumber").toArrow().to_pydict()
        if rows["partition"]:
            with outcome.lock:
                outcome.connections.append(server.connections())
                outcome.read.update(zip(rows["partition"], rows["sequenceNumber"], strict=True))

    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint")).start()


def _burst(server: Emulator, sent: dict[str, int], rng: random.Random) -> None:
    for partition in sent:
        count = rng.randrange(1, _BURST)
        server.append(HUB, partition, [b"x" * 100] * count)
        sent[partition] += count


def _pause(seconds: float, ended: Callable[[], bool]) -> None:
    """Wait for the end of a batch, then `seconds` more."""
    with contextlib.suppress(TimeoutError):
        wait_for(ended, "a batch has ended", 60)
    time.sleep(seconds)


def _workers() -> int:
    """The number of this process's Python workers, which a daemon of the JVM forks."""
    processes = running()
    jvms = {each.pid for each in processes if each.parent == os.getpid()}
    daemons = {each.pid for each in processes if each.parent in jvms and "pyspark.worker" in each.command}
    return sum(each.parent in daemons for each in processes)


def main(
    cases: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CASES)}. Default: all.")] = None,
    minutes: Annotated[float, typer.Option(help="How long each query runs, at least.")] = 10.0,
    batches: Annotated[int, typer.Option(help="How many batches each query runs, at least.")] = 100,
    token_life: Annotated[float, typer.Option(help="Seconds.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of bursts and pauses.")] = 0,
) -> None:
    """Many Python workers and short tokens."""
    if wrong := {*(cases or ())} - CASES.keys():
        raise typer.BadParameter(f"{', '.join(wrong)}: allowed are {', '.join(CASES)}")
    passed = True
    with IdentityEndpoint(token_life) as identity, tempfile.TemporaryDirectory() as folder:
        os.environ.update(identity.environment | {LIFE: str(token_life)})
        for name in cases or CASES:
            case_folder = Path(folder) / name
            case_folder.mkdir()
            outcome = run(CASES[name], case_folder, minutes=minutes, batches=batches, life=token_life, seed=seed)
            log(outcome.summary(CASES[name]))
            passed &= outcome.passed(CASES[name], batches)
    finish(passed)


if __name__ == "__main__":
    typer.run(main)
