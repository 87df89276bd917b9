"""Runs each job with the command in its documentation, on a Spark with separate executor processes. The first run ends
with a SIGKILL of all processes in the middle of the work; the second finishes the work. Then every row is checked."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

import deltalake
import pyspark
from deltalake.exceptions import DeltaError

from chaos.hubs import copy_differences, event_counts, read_hub
from chaos.processes import kill_session
from chaos.results import RunOptions, log, print_table
from chaos.session import FAST_START
from spark_ehbalance.emulator import Emulator

ROOT = Path(__file__).parents[1]

#: Two executors, each a process with a core and 1 GB.
MASTER = "local-cluster[2,1,1024]"

PARTITIONS = 4

#: Events per hub, and events per batch: most of the work remains after the first batch.
EVENTS, BATCH = 6_000, 1_000

#: The numbers of the events of each partition.
NUMBERS = range(EVENTS // PARTITIONS)

#: Seconds for a whole run on a busy machine.
_TIMEOUT = 420.0

#: Attempts to kill a job in the middle of its work.
_ATTEMPTS = 3

Rows = Counter[tuple[object, ...]]


class Case(ABC):
    """A job that uses files in a new `folder`, and its own hub."""

    name: ClassVar[str]

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self.folder, self.emulator = folder, emulator
        self.hub = f"hub-{folder.name}"
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Fill the hub."""

    def settings(self) -> dict[str, str]:
        """The job's settings in addition to those in its file, without their common prefix."""
        return {
            "checkpointLocation": f"{self.folder}/checkpoint",
            "trigger": "availableNow",
            "source.leaseTable": f"{self.folder}/leases",
            "source.maxEventsPerTrigger": str(BATCH),
        }

    def environment(self) -> dict[str, str]:
        return {"EHBALANCE_CONNECTION_STRING": self.emulator.connection_string(self.hub)}

    @abstractmethod
    def done(self) -> int:
        """The number of events, of `EVENTS`, that the job has finished."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Descriptions of everything that is wrong with the job's result."""


def fill(emulator: Emulator, hub: str, numbers: range, body: Callable[[int], str] = str) -> Rows:
    """Send events with these `numbers` to each partition. Returns the partition, sequence number and body of each
    event."""
    with contextlib.suppress(ValueError):  # it already exists
        emulator.add_hub(hub, PARTITIONS)
    sent = Rows()
    for partition in map(str, range(PARTITIONS)):
        bodies = [*map(body, numbers)]
        emulator.append(hub, partition, [body.encode() for body in bodies])
        sent.update((partition, number, body) for number, body in zip(numbers, bodies, strict=True))
    return sent


def table_rows(table: Path, columns: Collection[str]) -> Rows:
    """These columns of all rows in the Delta table. There are no rows if it does not exist yet."""
    with contextlib.suppress(DeltaError, OSError):
        rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=[*columns])
        return Counter(zip(*(rows[name].to_pylist() for name in columns), strict=True))
    return Counter()


def differences(found: Rows, sent: Rows, what: str) -> list[str]:
    """One line about missing rows, and one about surplus rows, if there are any."""
    kinds = (("missing from", sent - found), ("too many in", found - sent))
    return [f"{rows.total():,} rows are {verb} {what}, such as {next(iter(rows))}" for verb, rows in kinds if rows]


class StreamToDelta(Case):
    """Every event is in the table once."""

    name = "stream_to_delta"
    columns = ("partition", "sequenceNumber", "body")

    def prepare(self) -> None:
        self.sent = fill(self.emulator, self.hub, NUMBERS)

    def settings(self) -> dict[str, str]:
        return super().settings() | {"table": f"{self.folder}/table"}

    def done(self) -> int:
        return table_rows(self.folder / "table", ("partition",)).total()

    def problems(self) -> list[str]:
        return differences(table_rows(self.folder / "table", self.columns), self.sent, "the table")


class BatchToDelta(StreamToDelta):
    """The events of a time range are in the table once, and no others."""

    name = "batch_to_delta"

    def prepare(self) -> None:
        first, last = 100, 100 + len(NUMBERS)
        fill(self.emulator, self.hub, range(first))
        self.begin = _next_second()
        self.sent = fill(self.emulator, self.hub, range(first, last))
        self.end = _next_second()
        fill(self.emulator, self.hub, range(last, last + 100))

    def settings(self) -> dict[str, str]:
        limits = {"from": self.begin, "to": self.end}
        times = {name: datetime.fromtimestamp(at, timezone.utc).isoformat() for name, at in limits.items()}
        return {"table": f"{self.folder}/table", "maxEventsPerCommit": str(BATCH), **times}


def _next_second() -> int:
    """Wait until the next second begins. Returns that second."""
    second = int(time.time()) + 1
    while time.time() < second:
        time.sleep(0.01)
    return second


class ParseToDelta(StreamToDelta):
    """Every event is in one of the two tables once: its fields, or its body with the reason."""

    name = "parse_to_delta"

    def prepare(self) -> None:
        fill(self.emulator, self.hub, NUMBERS, _body)
        places = [(str(partition), number) for partition in range(PARTITIONS) for number in NUMBERS]
        self.parsed: Rows = Counter((*at, f"event {at[1]}", at[1]) for at in places if at[1] % 10)
        self.rejected: Rows = Counter((*at, _body(at[1]).encode()) for at in places if not at[1] % 10)

    def settings(self) -> dict[str, str]:
        return super().settings() | {"rejected": f"{self.folder}/rejected"}

    def done(self) -> int:
        return super().done() + table_rows(self.folder / "rejected", ("partition",)).total()

    def problems(self) -> list[str]:
        parsed = table_rows(self.folder / "table", ("partition", "sequenceNumber", "id", "delay"))
        rejected = table_rows(self.folder / "rejected", ("partition", "sequenceNumber", "body"))
        wrong = differences(parsed, self.parsed, "the table") + differences(rejected, self.rejected, "the rejected one")
        reasons = table_rows(self.folder / "rejected", ("reason",))
        return wrong + [
            f"{rows} rows are rejected without a reason" for (reason,), rows in reasons.items() if not reason
        ]


def _body(number: int) -> str:
    """A body. Every tenth cannot be parsed: it is truncated, or lacks a field."""
    if number % 20 == 0:
        return f'{{"id": "event {number}'
    return json.dumps({"id": f"event {number}", "delay": number} if number % 10 else {"delay": number})


class CopyHub(Case):
    """Every event is in the other hub with its key and its properties, and the events of each key are in order."""

    name = "copy_hub"

    def prepare(self) -> None:
        self.copy = f"{self.hub}-copy"
        self.emulator.add_hub(self.hub, PARTITIONS)
        self.emulator.add_hub(self.copy, PARTITIONS + 1)
        for partition, key in ((p, f"key-{p}-{k}") for p in range(PARTITIONS) for k in range(5)):
            numbers = range(EVENTS // PARTITIONS // 5)
            bodies = [f"{key} {number}".encode() for number in numbers]
            properties = [{"number": number, "text": "ä", "flag": number % 2 == 0, "half": 0.5} for number in numbers]
            self.emulator.append(self.hub, partition, bodies, properties, partition_key=key)

    def environment(self) -> dict[str, str]:
        return super().environment() | {"EHBALANCE_SINK_CONNECTION_STRING": self.emulator.connection_string(self.copy)}

    def done(self) -> int:
        return sum(event_counts(self.emulator, self.copy))

    def problems(self) -> list[str]:
        return copy_differences(read_hub(self.emulator, self.hub), read_hub(self.emulator, self.copy))[1]


CASES: tuple[type[Case], ...] = (StreamToDelta, BatchToDelta, ParseToDelta, CopyHub)


def spark_home(folder: Path) -> Path:
    """Link the installed Spark into `folder`, so that its workers write their files there."""
    if not folder.exists():
        folder.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            (folder / path.name).symlink_to(path)
    return folder


def submit(case: Case, home: Path, log_file: Path) -> subprocess.Popen[bytes]:
    """Start the job as the leader of a new session of processes."""
    settings = {f"spark.ehbalance.job.{name}": value for name, value in case.settings().items()}
    java = f"-Dlog4j2.configurationFile=conf/log4j2.properties -XX:+UseSerialGC {FAST_START}"
    settings |= {
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={home.parent}",
        "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {FAST_START}",
        "spark.sql.warehouse.dir": f"{home.parent}/warehouse",
        "spark.local.dir": f"{home.parent}/local",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [f"{home}/bin/spark-submit", "--properties-file", f"conf/{case.name}.conf", "--master", MASTER, *conf]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    environment = {**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **case.environment()}
    with log_file.open("ab") as out:
        out.write(f"{shlex.join(command)} jobs/{case.name}.py\n".encode())
        return subprocess.Popen(
            [*command, f"jobs/{case.name}.py"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def run_job(case: Case, until: Callable[[], bool] = lambda: False) -> None:
    """Run the job to its end, or kill it as soon as `until` returns true. Raises `TimeoutError`, and `OSError` if the
    job fails."""
    log_file, deadline = case.folder / "job.log", time.monotonic() + _TIMEOUT
    process = submit(case, spark_home(case.folder.parent / "spark"), log_file)
    try:
        while process.poll() is None:
            if until():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{case.name} did not end within {_TIMEOUT:g} s")
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            kill_session(process.pid)
            process.wait()
    if process.returncode:
        last = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()][-8:]
        raise OSError("\n    ".join([f"{case.name}: exit code {process.returncode}", *last]))


def check(kind: type[Case], folder: Path, emulator: Emulator) -> tuple[str, list[str]]:
    """Kill a job in the middle of its work and run it again to the end. Returns a summary and the problems."""
    for attempt in range(_ATTEMPTS):
        place = folder / f"{kind.name.replace('_', '-')}-{attempt}"
        place.mkdir()
        case = kind(place, emulator)
        run_job(case, lambda case=case: 0 < case.done() < EVENTS)  # type: ignore[misc]
        if 0 < (done := case.done()) < EVENTS:
            run_job(case)
            return f"killed after {done:,} of {EVENTS:,} events", case.problems()
    return "", [f"in {_ATTEMPTS} attempts it ended before it could be killed"]


def run(run_options: RunOptions) -> bool:
    """Check all jobs, or two in the short form."""
    rows, passed = list[tuple[str, ...]](), True
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="ehbalance-jobs-", ignore_cleanup_errors=True)
        folder = run_options.keep.absolute() if run_options.keep else Path(stack.enter_context(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        emulator = stack.enter_context(Emulator({"unused": 1}))
        for kind in (StreamToDelta, CopyHub) if run_options.short else CASES:
            began = time.monotonic()
            summary, problems = check(kind, folder, emulator)
            log(f"{kind.name}: {summary}")
            for line in problems[:5]:
                log(f"  WRONG: {line}")
            passed &= not problems
            result = f"{len(problems)} wrong" if problems else "right"
            rows.append((kind.name, f"{time.monotonic() - began:.0f} s", summary, result))
    print_table(("job", "time", "how", "result"), rows, "jobs")
    return passed
