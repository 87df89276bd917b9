"""The demo from its first process to its verdict."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from spark_ehbalance.demo import flights
from spark_ehbalance.demo.processes import Child, DemoError, Interrupted, start_job
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.exactly_once.spark_settings import spark_settings
from spark_ehbalance.group.model import Lease
from spark_ehbalance.lease_table.opening import open_store
from spark_ehbalance.shipped import LOG4J, folder

HUB, PARTITIONS = "flights", 8

#: Java compiles less but sooner: two short-lived JVMs start on few cores.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Shorter than the defaults (10 s and 30 s), so that a short demo has moves.
_INTERVALS = {"balanceInterval": "2 seconds", "leaseDuration": "10 seconds"}

#: Seconds between two steps of sending and two reads of the leases, and between lines of progress without a move.
_STEP, _LINE_INTERVAL = 0.25, 5.0

#: The fraction of the flights sent before both queries run, so that the rest is in flight when one of them is killed.
_BEFORE_BOTH = 0.8

#: Seconds that both queries run together before one of them is killed or stopped.
_TOGETHER = 3.0


def run(*, seconds: float, limit: float) -> int:
    """Run the demo: the flights are sent over `seconds`, and all may take `limit` seconds.

    Returns the exit code: 0 if every event is in the table once.
    """
    os.environ.pop("SPARK_HOME", None)  # it may belong to another Spark than pyspark
    with tempfile.TemporaryDirectory(prefix="ehbalance-demo-", ignore_cleanup_errors=True) as temporary:
        demo = Demo(Path(temporary), seconds=seconds, limit=limit)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, demo.interrupt)
        try:
            count = demo.run()
        except DemoError as error:
            print(f"FAILED: {error}")
            return 1
        except Interrupted as interrupted:
            print("Interrupted: cleaning up.")
            return 128 + int(interrupted.args[0])
        finally:
            for child in reversed(demo.children):
                child.kill()
    passed = not count.missing and not count.duplicates
    print(
        f"{'OK' if passed else 'FAILED'}: {count.rows:,} rows in the Delta table, {count.missing:,} flights missing, "
        f"{count.duplicates:,} duplicates."
    )
    return 0 if passed else 1


class Demo:
    """One run in `folder`. The caller must kill the processes in `children`."""

    def __init__(self, folder: Path, *, seconds: float, limit: float) -> None:
        self.children: list[Child] = []
        self._folder = folder
        self._send_seconds = seconds
        self._limit = limit
        self._began = time.monotonic()
        self._line_at = 0.0
        self._store = open_store(str(folder / "leases"))
        self._leases: Mapping[str, Lease] = {}
        self._shown = ""  # the owners in the last line
        self._sent = [0] * PARTITIONS
        self._sending = 0.0  # seconds
        self._interrupted_by: int | None = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler that makes `run` raise `Interrupted`, but never while it starts a process."""
        self._interrupted_by = number

    def run(self) -> flights.Count:
        """Run the demo. Raises `DemoError`, `Interrupted`, or `EhBalanceError` if there is no Delta for this Spark."""
        self._delta = {name: value for name, value in spark_settings().items() if name.startswith("spark.jars.")}
        self._bodies = flights.load()
        with Emulator({HUB: PARTITIONS}) as self._emulator:
            self._play(len(self._bodies))
        self._log("counting the rows of the Delta table")
        return flights.count(str(self._folder / "events"), self._bodies)

    def _play(self, total: int) -> None:
        self._may_send = _BEFORE_BOTH
        self._log(f"starting query A, and sending {total:,} flights over {self._send_seconds:g} s")
        a = self._start_query("A")
        self._until(lambda: sum(self._sent) >= total / 3 and self._read() > 0, "A reads all partitions")
        self._log("starting query B, with its own checkpoint")
        b = self._start_query("B")
        self._until(lambda: "B" in self._owners(), "B starts")
        self._may_send = 1.0
        self._share()
        self._log("killing B: SIGKILL to all its processes")
        b.kill()
        killed = self._seconds()
        self._until(lambda: self._owners() == {"A"}, "B is killed, its leases expire")
        self._log(f"{self._seconds() - killed:.1f} s after the kill A owns all partitions: starting B again")
        b = self._start_query("B")
        self._until(lambda: "B" in self._owners(), "B starts again")
        self._share()
        self._log("stopping A")
        self._stop(a, "A stops, B takes over")
        self._until(lambda: self._read() >= total, "B reads the rest")
        self._log("all is read: stopping B")
        self._stop(b, "B stops")

    # --- the processes -----------------------------------------------------------------------------------------

    def _start_query(self, name: str) -> Child:
        job, root = "spark.ehbalance.job.", folder()
        source = {
            "maxEventsPerTrigger": "50000",  # short batches, so that progress is visible
            "leaseTable": str(self._folder / "leases"),
            "ownerId": name,
            **_INTERVALS,
        }
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            **self._delta,
            "spark.driver.extraJavaOptions": f"{_QUICK_START} -Dlog4j2.configurationFile={root / LOG4J}",
            "spark.databricks.delta.snapshotPartitions": "2",  # 50 by default: too many for so small a table
            f"{job}table": str(self._folder / "events"),
            f"{job}checkpointLocation": str(self._folder / f"checkpoint-{name}"),
            f"{job}trigger": "2 seconds",
            f"{job}source.eventHubName": HUB,
            **{f"{job}source.{option}": value for option, value in source.items()},
        }
        query = start_job(name, root, settings, self._emulator.connection_string(), self._folder)
        self.children.append(query)
        return query

    def _stop(self, query: Child, phase: str) -> None:
        query.ask_to_stop()
        self._until(lambda: query.ended() is not None, phase)
        if query.ended() != 0:
            raise query.failure(f"was asked to stop and ended with exit code {query.ended()}")

    # --- progress ----------------------------------------------------------------------------------------------

    def _share(self) -> None:
        together = self._seconds() + _TOGETHER
        self._until(lambda: self._seconds() > together, "A and B share the partitions")

    def _until(self, condition: Callable[[], bool], phase: str) -> None:
        """Send, read the leases and show them until `condition` holds."""
        self._step(phase)
        while not condition():
            time.sleep(_STEP)
            self._sending += _STEP
            self._step(phase)

    def _step(self, phase: str) -> None:
        self._check(phase)
        self._send()
        for child in self.children:
            if child.ended() is not None and not child.may_end:
                raise child.failure(f"has ended with exit code {child.ended()}")
        before = self._leases
        try:
            self._leases = self._store.read().leases
        except StoreUnavailableError:
            if before:
                raise
        owners = " ".join(lease.owner or "-" for lease in self._leases.values()) or "no leases yet"
        if owners != self._shown or self._seconds() >= self._line_at:
            self._shown, self._line_at = owners, self._seconds() + _LINE_INTERVAL
            self._log(f"{phase}: {sum(self._sent):,} sent, {self._read():,} read; owners: {owners}")

    def _send(self) -> None:
        """Send the flights that are due; every `PARTITIONS`th goes to the same partition."""
        due = int(min(self._sending / self._send_seconds, self._may_send) * len(self._bodies))
        for partition in range(PARTITIONS):
            bodies = self._bodies[partition:due:PARTITIONS][self._sent[partition] :]
            if bodies:
                self._emulator.append(HUB, partition, [body.encode() for body in bodies])
                self._sent[partition] += len(bodies)

    def _owners(self) -> set[str | None]:
        return {lease.owner for lease in self._leases.values()}

    def _read(self) -> int:
        """The number of events in the Delta table, according to the lease table."""
        return sum(lease.checkpoint.next for lease in self._leases.values() if lease.checkpoint)

    def _log(self, text: str) -> None:
        self._check(text)
        print(f"{self._seconds():6.1f} s  {text}", flush=True)

    def _check(self, phase: str) -> None:
        if self._interrupted_by is not None:
            raise Interrupted(self._interrupted_by)
        if self._seconds() > self._limit:
            raise DemoError(f"the time limit of {self._limit:g} s is over while {phase}: see --limit")

    def _seconds(self) -> float:
        return time.monotonic() - self._began
