"""The round trip: `python -m chaos.round_trip [--short] [--seed N] [--way tls]`.

`df.write` fills hub A, half of it among faults. A streaming query copies A to B, in many batches, while a schedule
drawn from the seed meets the hub, the query's Python workers and its driver. Then both hubs are read with
azure-eventhub's client, and B also with `spark.read`, and compared event by event with what was sent: bodies, keys,
types of properties, partitions. None may be missing, the events of a key must be in order, and a repetition needs a
fault in its time that may lead to one: a hub that is busy or is suspended for a while may not.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer
from azure.eventhub import EventHubConsumerClient

from chaos.processes import QueryProcess, send, wait_for
from chaos.query import Settings
from chaos.results import finish, log, print_table
from chaos.round_trip_account import Account, Fault, Row, account, of_client, of_spark
from chaos.round_trip_events import PARTITIONS, SLICES, event, number_of
from spark_ehbalance.emulator.certificates import make
from spark_ehbalance.emulator.control import EmulatorControl

DROP = "connections dropped"
OUTAGE = "connections dropped and refused"
SILENCE = "connections dropped, then silent"
DETACH = "links detached"
BUSY = "server busy for seconds"
BUSY_TIMES = "server busy, some times"
PAUSE = "SIGSTOP of the hub"
FREEZE = "SIGSTOP of the hub for long"
KILL_HUB = "SIGKILL of the hub"
KILL_WORKERS = "SIGKILL of the workers"
KILL_QUERY = "SIGKILL of the query"
STOP = "query.stop()"

#: In the order of the table.
KINDS = (DROP, OUTAGE, SILENCE, DETACH, BUSY, BUSY_TIMES, PAUSE, FREEZE, KILL_HUB, KILL_WORKERS, KILL_QUERY, STOP)

#: Those after which nothing may be there twice: they refuse, or answer late.
_HARMLESS = {BUSY, BUSY_TIMES, PAUSE}

#: Those that meet `df.write`, and those of the short form.
_OF_A_WRITE = (DROP, DETACH, BUSY_TIMES, KILL_HUB, KILL_WORKERS)
_SHORT = (DROP, OUTAGE, DETACH, BUSY_TIMES, PAUSE, KILL_HUB, KILL_WORKERS, STOP)

#: With which a link is detached.
_CONDITIONS = ("amqp:link:detach-forced", "amqp:internal-error", "com.microsoft:timeout", "amqp:connection:forced")

#: How long a suspended hub outlasts what the sink waits for an answer, in seconds.
_FROZEN = 40.0

#: Seconds by which answers to sends are late until a fault comes, so that it meets batches that have no answer yet.
_DELAY = 2.0

#: Seconds in which events must flow again after a fault: waits for a silent connection, a failed task, Spark's start.
_TIMEOUT = 300.0

#: Seconds between two lines of progress.
_PROGRESS = 5.0


class Ended(Exception):
    """All is written or copied."""


class Hubs:
    """The emulator, in a process of its own that keeps events in files, with hubs `a` and `b`."""

    def __init__(self, folder: Path, way: str) -> None:
        self._folder, self._way = folder, way
        (folder / "data").mkdir()
        self._certificate = make(folder) if way != "amqp" else None
        self._ports = {"--port": 0, "--control-port": 0} | ({"--websocket-port": 0} if way == "websocket" else {})
        self.start()

    def start(self) -> None:
        """Start it, again on the ports that it had."""
        more = [] if self._certificate is None else ["--certificate", str(self._certificate.server_file)]
        hubs = ["--hub", f"a:{PARTITIONS}", "--hub", f"b:{PARTITIONS}", "--data", str(self._folder / "data")]
        ports = [f"{name}={port}" for name, port in self._ports.items()]
        with (self._folder / "emulator.log").open("ab") as errors:
            command = [sys.executable, "-m", "spark_ehbalance.emulator", *hubs, *ports, *more]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdout=pipe, stderr=errors, text=True, start_new_session=True)
        assert self.process.stdout
        ready = self.process.stdout.readline()
        found = {"--port": re.search(r"sb://localhost:(\d+)", ready)}
        found |= {name: re.search(rf"{name[2:].replace('-', ' ')} (\d+)", ready) for name in [*self._ports][1:]}
        self._ports = {name: int(match[1]) for name, match in found.items() if match}
        self._string = re.sub(r"^Emulator ready: (\S+).*", r"\1", ready.strip())
        self.control = EmulatorControl("127.0.0.1", self._ports["--control-port"])

    @property
    def connection(self) -> dict[str, str]:
        """The options of the connection."""
        given = {"connectionString": self._string}
        if self._certificate is not None:
            port = self._ports["--websocket-port" if self._way == "websocket" else "--port"]
            given |= {"customEndpointAddress": f"localhost:{port}", "caFile": str(self._certificate.ca_file)}
        return given | ({"transportType": "AmqpOverWebsocket"} if self._way == "websocket" else {})

    def client(self, hub: str) -> EventHubConsumerClient:
        """azure-eventhub's own client, for this way."""
        given, more = self.connection, dict[str, Any]()
        if self._certificate is not None:
            more = {"custom_endpoint_address": f"sb://{given['customEndpointAddress']}"}
            more |= {"ssl_context": self._certificate.client_context()}
        if self._way == "tls":
            from azure.eventhub import TransportType

            more["transport_type"] = TransportType.Amqp
        return EventHubConsumerClient.from_connection_string(self._string, "$Default", eventhub_name=hub, **more)

    def counts(self, hub: str) -> list[int]:
        """The events of each partition."""
        return [self.control.partition_state(hub, each).next_sequence_number for each in range(PARTITIONS)]

    def kill(self) -> None:
        """End it without a chance to write anything."""
        self.process.kill()
        self.process.wait()
        self.control.close()


@dataclass
class RoundTrip:
    """One run; `faults` are those injected."""

    folder: Path
    seed: int
    total: int
    per_trigger: int
    hubs: Hubs
    stack: ExitStack
    faults: list[Fault] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    connections: tuple[int, int] = (0, 0)  # the most that were open after a fault, and how many were allowed then
    _runs: int = 0
    _logged: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._launch()

    def write(self, kinds: list[str]) -> None:
        """Fill hub A: the first half without faults, then among faults of these `kinds`."""
        half = self.total // 2
        self._query.tell("write", **{"from": "0", "to": str(half)})
        self._until_end("a", "the first half is written")
        self._query.tell("write", **{"from": str(half), "to": str(self.total)})
        self._among(kinds, "a", half // 12)

    def copy(self, kinds: list[str]) -> None:
        """Copy A to B: some batches without faults, then among faults of these `kinds`, then the rest without."""
        self._query.tell("copy")
        self._flow("b", self.total // 10)
        self._among(kinds, "b", self.total // (3 * len(kinds)))

    def read(self) -> tuple[Account, Account, Account]:
        """What is in A, in B, and in B as `spark.read` has it."""
        a = account(self._by_client("a"), self.seed, self.total, self.faults)
        b = account(self._by_client("b"), self.seed, self.total, self.faults, a)
        self._query.tell("read", hub="b")
        with contextlib.suppress(Ended):
            wait_for(self._poll, "B is read by Spark", _TIMEOUT)
        rows = of_spark(pq.read_table(self.folder / "b.parquet"))
        return a, b, account(rows, self.seed, self.total, self.faults, a)

    # --- faults ------------------------------------------------------------------------------------------------

    def _among(self, kinds: list[str], hub: str, between: int) -> None:
        for kind in kinds:
            try:
                self._flow(hub, between)
                self.hubs.control.delay(_DELAY, hub)
                self._flow(hub, 1)
                self.hubs.control.delay(0.0, hub)
            except Ended:
                log("  all has come before the faults are over")
                self.hubs.control.delay(0.0, hub)
                return
            self._count_connections()
            log(f"  {kind}")
            fault = Fault(kind, time.time(), repeats=kind not in _HARMLESS)
            self.faults.append(fault)
            self._inject(kind, hub)
            fault.ended = time.time()
        self._until_end(hub, "all has come")

    def _inject(self, kind: str, hub: str) -> None:
        control, seconds = self.hubs.control, self._rng.uniform(1.5, 4.0)
        match kind:
            case "connections dropped":
                control.drop_connections()
            case "connections dropped and refused":
                control.refuse_connections()
                control.drop_connections()
                time.sleep(seconds)
                control.refuse_connections(False)
            case "connections dropped, then silent":
                control.silence_connections()
                control.drop_connections()
                time.sleep(seconds)
                control.silence_connections(False)
            case "links detached":
                control.detach(hub, condition=self._rng.choice(_CONDITIONS))
            case "server busy for seconds":
                control.server_busy(seconds=seconds)
                time.sleep(seconds)
            case "server busy, some times":
                control.server_busy(count=self._rng.randrange(1, 6))
            case "SIGSTOP of the hub" | "SIGSTOP of the hub for long":
                self.hubs.process.send_signal(signal.SIGSTOP)
                time.sleep(seconds if kind == PAUSE else _FROZEN)
                self.hubs.process.send_signal(signal.SIGCONT)
            case "SIGKILL of the hub":
                self.hubs.kill()
                time.sleep(seconds)
                self.hubs.start()
            case "SIGKILL of the workers":
                send(self._query.workers(), signal.SIGKILL)
            case "SIGKILL of the query":
                self._query.kill()
                self._launch()
                self._query.tell("copy")
            case "query.stop()":
                self._query.tell("stop")
                with contextlib.suppress(Ended):
                    wait_for(self._poll, "the query has stopped", _TIMEOUT)
                self._query.tell("copy")

    # --- progress ----------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        (self.folder / "tmp").mkdir(exist_ok=True)
        options = {"connection": json.dumps(self.hubs.connection), "events": str(self.total), "seed": str(self.seed)}
        options["perTrigger"] = str(self.per_trigger)
        settings = Settings(str(self.folder), options)
        self._query = QueryProcess(settings, self.folder / f"query-{self._runs}.log", "chaos.round_trip_query")
        self.stack.callback(self._query.kill)
        self._runs += 1

    def _flow(self, hub: str, count: int) -> None:
        """Wait until `count` more events have come. Raises `Ended` if there are no more, `TimeoutError`."""
        before = sum(self.hubs.counts(hub))

        def come() -> bool:
            self._poll()
            now = sum(self.hubs.counts(hub))
            self._progress(hub, now)
            return now >= before + count

        wait_for(come, f"{count} more events come to {hub}", _TIMEOUT)

    def _until_end(self, hub: str, what: str) -> None:
        def ended() -> bool:
            self._progress(hub, sum(self.hubs.counts(hub)))
            return self._poll()

        with contextlib.suppress(Ended):
            wait_for(ended, what, _TIMEOUT)

    def _poll(self) -> bool:
        """Read what the application reports. Raises `Ended` at the end of a command; never true."""
        for each in self._query.new_events():
            match each["event"]:
                case "written" | "copied" | "stopped" | "read":
                    raise Ended
                case "failed":
                    self.failures[each["why"]] += 1
                    self.faults.append(Fault("query failed", each["at"] - 1, each["at"]))
                    log(f"  the query failed: {each['why'][:300]}")
                case "not written":
                    raise RuntimeError(f"the write failed: {each['why']}")
        return False

    def _progress(self, hub: str, count: int) -> None:
        if time.monotonic() - self._logged > _PROGRESS:
            self._logged = time.monotonic()
            log(f"{self._logged - self._began:.0f} s: {count:,} of {self.total:,} events and repetitions in {hub}")

    def _count_connections(self) -> None:
        """A worker may have a link to each partition of a hub, and one to it; the planner one, and one for a moment."""
        allowed = len(self._query.workers()) * (PARTITIONS + 2) + 4
        self.connections = max(self.connections, (self.hubs.control.connections(), allowed))

    def _by_client(self, hub: str) -> list[Row]:
        """All events, read by azure-eventhub's client, a thread for each partition."""
        counts, rows = self.hubs.counts(hub), list[Row]()
        for partition, count in enumerate(counts):
            with self.hubs.client(hub) as client:
                found: list[Any] = []
                arguments = {"on_event_batch": lambda _, events, to=found: to.extend(events), "starting_position": "-1"}
                more = {"partition_id": str(partition), "max_batch_size": 1000, "prefetch": 2000}
                thread = threading.Thread(target=client.receive_batch, kwargs=arguments | more, daemon=True)
                thread.start()
                wait_for(lambda: len(found) >= count, f"partition {partition} is read", _TIMEOUT)  # noqa: B023
            rows += [self._row(str(partition), each) for each in found]
        return rows

    def _row(self, partition: str, given: Any) -> Row:
        row = of_client(partition, given, {})
        number = number_of(row.body, {"number": row.properties.get("number")})
        return of_client(partition, given, event(self.seed, number, self.total).properties) if number >= 0 else row


def _report(run: RoundTrip, accounts: dict[str, Account], seconds: float) -> list[tuple[str, ...]]:
    injected = Counter(each.kind for each in run.faults)
    rows = [(f"fault: {kind}", str(injected[kind])) for kind in KINDS if injected[kind]]
    rows += [(f"query failed: {why[:90]}", f"{count}") for why, count in run.failures.most_common()]
    for name, each in accounts.items():
        rows += [
            (f"{name}: events", f"{each.rows:,}"),
            ("  missing", f"{len(each.missing):,}"),
            ("  not as sent", f"{len(each.wrong):,}"),
            ("  out of order", f"{len(each.disorder):,}"),
            ("  repeated", f"{each.repeated:,}"),
            *((f"    because of: {kind}", f"{count:,}") for kind, count in each.explained.most_common()),
            ("    unexplained", f"{len(each.unexplained):,}"),
        ]
    rows.append(("most connections after a fault, allowed", "{}, {}".format(*run.connections)))
    return [*rows, ("time", f"{seconds:.0f} s")]


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ehbalance-round-trip-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def main(
    short: Annotated[bool, typer.Option("--short", help="10,000 events and fewer faults.")] = False,
    events: Annotated[int | None, typer.Option(help="How many. Default: 100,000.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of events and faults. Default: a random one.")] = None,
    way: Annotated[str, typer.Option(help="To the hub: amqp, tls or websocket. Default: drawn.")] = "",
    keep: Annotated[Path | None, typer.Option(help="A new folder that keeps logs and events.")] = None,
) -> None:
    """Write, copy and compare events among faults."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    rng = random.Random(seed)
    way = way or rng.choice(("amqp", "tls", "websocket"))
    total = (events or (10_000 if short else 100_000)) // SLICES * SLICES
    copying = list(_SHORT) if short else [*KINDS, *(kind for kind in KINDS if kind not in (FREEZE, SILENCE))]
    writing = [] if short else list(_OF_A_WRITE)
    rng.shuffle(copying)
    rng.shuffle(writing)
    log(f"seed {seed}: {total:,} events, {len(writing) + len(copying)} faults, by {way}")
    began = time.monotonic()
    problem = ""
    accounts: dict[str, Account] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        hubs = Hubs(folder, way)
        stack.callback(hubs.kill)
        run = RoundTrip(folder, seed, total, total // (12 if short else 50), hubs, stack)
        try:
            log("writing")
            run.write(writing)
            log("copying")
            run.copy(copying)
            log("reading and comparing")
            accounts = dict(zip(("A", "B", "B by spark.read"), run.read(), strict=True))
        except (TimeoutError, RuntimeError) as error:
            problem = str(error)
        rows = _report(run, accounts, time.monotonic() - began)
    print_table(("what", "count"), rows, f"round trip, seed {seed}, by {way}")
    for name, each in accounts.items():
        for line in (*each.wrong[:10], *each.disorder[:10], *each.unexplained[:10], *map(str, each.missing[:10])):
            log(f"{name}: {line}")
    if problem:
        log(f"failed: {problem}")
    passed = bool(accounts) and all(each.passed for each in accounts.values())
    if passed and accounts["B"].sequence() != accounts["B by spark.read"].sequence():
        problem = "the two readers differ"
        log(problem)
    if run.connections[0] > run.connections[1]:
        problem = f"{run.connections[0]} connections are open, allowed are {run.connections[1]}"
        log(problem)
    log(f'seed {seed}; to repeat: make round-trip ARGS="--seed {seed} --way {way}{" --short" if short else ""}"')
    finish(passed and not problem)


if __name__ == "__main__":
    typer.run(main)
