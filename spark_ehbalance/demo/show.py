"""The sequence of the demo."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from spark_ehbalance.delta.spark_settings import spark_settings
from spark_ehbalance.emulator.control import EmulatorControl
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.shipped import LOG4J, folder
from spark_ehbalance.stores.opening import open_store

from . import flights
from .ownership import Ownership, described
from .player import Player
from .processes import (
    Child,
    DemoError,
    Interrupted,
    emulator_address,
    fetched_jars,
    start_emulator,
    start_fetching,
    start_job,
)
from .screen import Picture, Screen
from .verdict import Verdict, judge

#: Java compiles less but sooner: two short-lived JVMs start on few cores.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
HUB, PARTITIONS, QUERIES = "flights", 8, ("A", "B")

#: Shorter than the defaults (10 s and 30 s), so that a short demo has moves.
BALANCE_INTERVAL, LEASE_DURATION = "2 seconds", "10 seconds"

#: Seconds between two looks at the leases.
_LOOK_INTERVAL = 0.25

#: The part of the flights that is sent before both queries run: the rest is in flight when one of them is killed, also
#: on a machine that takes long to start it.
_BEFORE_BOTH = 0.8

#: Seconds that both queries run together before one of them is killed or stopped.
_TOGETHER = 3.0


@dataclass(frozen=True)
class Result:
    """The result of the demo."""

    verdict: Verdict
    ownership: Ownership
    most_readers: int  # receivers attached to one partition of the hub at the same time
    without_reader: float  # seconds from the kill of a query until another had all its partitions
    seconds: float


class Show:
    """One run of the demo in `folder`. It sends the flights over `play_seconds` and may take `limit` seconds in all.

    The caller must end the processes in `children`.
    """

    def __init__(self, folder: Path, screen: Screen, *, play_seconds: float, limit: float) -> None:
        self.children: list[Child] = []
        self.player: Player | None = None
        self._folder = folder
        self._table = str(folder / "events")
        self._screen = screen
        self._play_seconds = play_seconds
        self._limit = limit
        self._began = time.monotonic()
        self._ownership = Ownership(QUERIES)
        self.leases = str(folder / "leases")
        self._store = open_store(self.leases)
        self._jars = ""  # of Delta Lake, where Spark has none
        self._most_readers = 0
        self._interrupted_by: int | None = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler that makes `run` raise `Interrupted`, but never while it starts a process."""
        self._interrupted_by = number

    def run(self) -> Result:
        """Run the demo from beginning to end. Raises `DemoError`, `Interrupted`, or `EhBalanceError` if there is no
        Delta Lake for this Spark."""
        self._fetch_delta(spark_settings())
        self._log(f"starting the emulator: hub {HUB}, {PARTITIONS} partitions")
        emulator = self._started(start_emulator(HUB, PARTITIONS, self._folder))
        self._connection, port = emulator_address(emulator)
        with EmulatorControl("127.0.0.1", port) as self._control:
            return self._play()

    def _play(self) -> Result:
        self._log(f"starting query A; balanceInterval {BALANCE_INTERVAL}, leaseDuration {LEASE_DURATION} for this demo")
        query_a = self._start_query("A")
        data = flights.load()
        self._total = total = len(data)
        self.player = player = Player(self._connection, HUB, PARTITIONS, data, self._play_seconds, _BEFORE_BOTH)
        self._log(f"sending {total:,} flights, {total / self._play_seconds:,.0f} a second")
        player.start()
        self._until(lambda: len(self._ownership.owned_by("A")) == PARTITIONS, "A starts")
        self._until(lambda: sum(player.sent) >= total / 3 and sum(self._read()) > 0, "A reads all")
        self._log("a third has been sent: starting query B, with its own checkpoint")
        query_b = self._start_query("B")
        self._until(lambda: bool(self._ownership.owned_by("B")), "A reads all, B starts")
        player.resume()
        self._share()
        self._log("killing B: SIGKILL to all its processes")
        killed = self._seconds()
        query_b.kill()
        self._until(lambda: len(self._ownership.owned_by("A")) == PARTITIONS, "B is killed, its leases expire")
        without_reader = self._seconds() - killed
        self._log(f"{without_reader:.1f} s after the kill A has all partitions: starting B again, from its checkpoint")
        query_b = self._start_query("B")
        self._until(lambda: bool(self._ownership.owned_by("B")), "A reads all, B starts again")
        self._share()
        self._until(lambda: sum(player.sent) >= total * 2 / 3, "A and B share")
        self._log(f"{sum(player.sent) / total:.0%} has been sent: stopping A")
        self._stop(query_a, "A stops, B takes over")
        self._until(lambda: sum(self._read()) >= total, "B reads the rest")
        self._ownership.over = True
        self._log("all is read: stopping B")
        self._stop(query_b, "B stops")
        seconds = self._seconds()
        self._log("counting the rows of the Delta table")
        states = [self._control.partition_state(HUB, partition) for partition in range(PARTITIONS)]
        verdict = judge(self._table, [state.next_sequence_number for state in states], data)
        return Result(verdict, self._ownership, self._most_readers, without_reader, seconds)

    def _fetch_delta(self, settings: Mapping[str, str]) -> None:
        """Fetch Delta's jars unless Spark has them: once for both queries, which would be in each other's way."""
        if "spark.jars.packages" not in settings:
            return
        self._log(f"fetching Delta Lake from Maven, once: {settings['spark.jars.packages']}")
        fetching = self._started(start_fetching(settings, self._folder))
        while fetching.ended() is None:
            time.sleep(_LOOK_INTERVAL)
            self._check("Delta Lake is fetched")
        self._jars = fetched_jars(fetching, settings["spark.jars.packages"])

    # --- the processes -----------------------------------------------------------------------------------------

    def _started(self, child: Child) -> Child:
        self.children.append(child)
        return child

    def _start_query(self, name: str) -> Child:
        job, root = "spark.ehbalance.job.", folder()
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            **({"spark.jars": self._jars} if self._jars else {}),
            "spark.driver.extraJavaOptions": f"{QUICK_START} -Dlog4j2.configurationFile={root / LOG4J}",
            "spark.databricks.delta.snapshotPartitions": "2",  # 50 by default: too many for so small a table
            f"{job}table": self._table,
            f"{job}checkpointLocation": str(self._folder / f"checkpoint-{name}"),
            f"{job}trigger": "2 seconds",
            f"{job}source.maxEventsPerTrigger": "50000",  # short batches, so that progress is visible
            f"{job}source.eventHubName": HUB,
            f"{job}source.leaseTable": self.leases,
            f"{job}source.ownerId": name,
            f"{job}source.balanceInterval": BALANCE_INTERVAL,
            f"{job}source.leaseDuration": LEASE_DURATION,
        }
        return self._started(start_job(name, root, settings, self._connection, self._folder))

    def _stop(self, query: Child, phase: str) -> None:
        query.ask_to_stop()
        self._until(lambda: query.ended() is not None, phase)
        if query.ended() != 0:
            raise query.failure(f"was asked to stop and ended with exit code {query.ended()}")

    # --- progress ----------------------------------------------------------------------------------------------

    def _share(self) -> None:
        together = time.monotonic() + _TOGETHER
        self._until(lambda: time.monotonic() > together, "A and B share")

    def _until(self, condition: Callable[[], bool], phase: str) -> None:
        """Refresh the screen until `condition` holds."""
        self._look(phase)
        while not condition():
            time.sleep(_LOOK_INTERVAL)
            self._look(phase)

    def _look(self, phase: str) -> None:
        assert self.player is not None
        self._check(phase)
        if self.player.error is not None:
            raise DemoError(f"the flights cannot be sent: {self.player.error}")
        for child in self.children:
            if child.ended() is not None and not child.may_end:
                raise child.failure(f"has ended with exit code {child.ended()}")
        try:
            leases = self._store.read().leases
        except StoreUnavailableError:
            leases = {}  # no query has made the table yet
        if leases or self._ownership.leases:
            for line in described(self._ownership.see(leases, self._seconds())):
                self._log(line)
        if self._ownership.violations:
            raise DemoError("the rules of ownership were broken: " + "; ".join(self._ownership.violations))
        readers = [len(self._control.readers(HUB, partition)) for partition in range(PARTITIONS)]
        self._most_readers = max(self._most_readers, *readers)
        self._screen.show(Picture(self._seconds(), phase, self._total, list(self.player.sent), self._read(), leases))

    def _read(self) -> list[int]:
        """The number of events of each partition in the Delta table, according to the lease table."""
        leases = self._ownership.leases
        checkpoints = [leases[str(p)].checkpoint if str(p) in leases else None for p in range(PARTITIONS)]
        return [checkpoint.next if checkpoint else 0 for checkpoint in checkpoints]

    def _log(self, text: str) -> None:
        self._check(text)
        self._screen.log(self._seconds(), text)

    def _check(self, phase: str) -> None:
        if self._interrupted_by is not None:
            raise Interrupted(self._interrupted_by)
        if self._seconds() > self._limit:
            raise DemoError(f"the time limit of {self._limit:g} s is over while {phase}: see --limit")

    def _seconds(self) -> float:
        return time.monotonic() - self._began
