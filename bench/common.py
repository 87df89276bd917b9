"""What the benchmarks share: an emulator in its own process, a Spark session, and the rows of the report."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.relay import Relay
from chaos.session import spark_session
from spark_ehbalance.delta.spark_settings import SESSION
from spark_ehbalance.emulator.control import EmulatorControl
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.network import AMQP, WEBSOCKET, Network

HUB, GROUP = "hub", "$Default"

#: Events that are sent to the emulator and copied there: sending every event would take most of the time.
_SENT = 100

#: The line that the emulator prints when it is ready.
_READY = re.compile(
    r"Emulator ready: (?P<string>\S+:(?P<port>\d+);\S+) \(control port (?P<control>\d+)"
    r"(, websocket port (?P<websocket>\d+))?(, CA file (?P<ca>.+))?\)\n"
)

#: Shows what is being measured.
Log = Callable[[str], None]


@dataclass(frozen=True)
class Bar:
    """The `most` or the `least` that a median may be."""

    which: Literal["most", "least"]
    value: float

    def held(self, measured: float) -> bool:
        return measured <= self.value if self.which == "most" else measured >= self.value

    def __str__(self) -> str:
        return f"{'≤' if self.which == 'most' else '≥'} {three_digits(self.value)}"


@dataclass(frozen=True)
class Row:
    """One line of the report: the value of each run, in `unit`, and those of each comparison, by its name."""

    subject: str
    what: str
    unit: str
    runs: tuple[float, ...]
    bar: Bar | None = None
    compared: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def held(self) -> bool | None:
        return None if self.bar is None else self.bar.held(self.median)

    def medians(self) -> dict[str, float]:
        return {who: statistics.median(runs) for who, runs in self.compared.items()}

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"median": self.median, "held": self.held}


def three_digits(value: float) -> str:
    """`value` for people: more digits are not reproducible."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Emulator:
    """An emulator with `HUB` in its own process, so that its CPU time is not counted."""

    control: EmulatorControl
    connection: Connection
    pid: int

    @property
    def address(self) -> str:
        return str(self.connection.connection_string)

    @contextlib.contextmanager
    def relayed(self, round_trip: float = 0.0) -> Iterator[tuple[Emulator, Relay]]:
        """This emulator through a relay, with `round_trip` seconds more for a round trip."""
        assert self.connection.network.endpoint
        port = self.connection.network.endpoint[1]
        assert port
        with Relay(port, round_trip) as relay:
            network = replace(self.connection.network, endpoint=("localhost", relay.port))
            string = self.address.replace(f":{port};", f":{relay.port};")
            yield replace(self, connection=replace(self.connection, connection_string=string, network=network)), relay

    def append(self, partition: int | str, bodies: list[bytes]) -> None:
        """Append events with these bodies."""
        self.control.append(HUB, partition, bodies)

    def fill(self, partition: int | str, body: bytes, events: int, properties: Mapping[str, Any] | None = None) -> None:
        for some, copies in ((_SENT, events // _SENT), (events % _SENT, 1)):
            if some and copies:
                self.control.append(HUB, partition, [body] * some, properties, copies=copies)


@contextlib.contextmanager
def emulator(partitions: int, *, tls: bool = False, websocket: bool = False) -> Iterator[Emulator]:
    """Start an emulator, with TLS or without, and a connection to it, by websocket or without."""
    command = [sys.executable, "-m", "spark_ehbalance.emulator", "--port", "0", "--control-port", "0"]
    command += ["--management-requests", "0"]  # what a request costs is measured, not what is allowed
    command += ["--hub", f"{HUB}:{partitions}"]
    command += ["--tls"] if tls else []
    command += ["--websocket-port", "0"] if websocket else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = _READY.fullmatch(process.stdout.readline())
            if ready is None:
                raise OSError("the emulator did not start")
            string = f"{ready['string'].rstrip(';')};EntityPath={HUB}"
            transport, port = (WEBSOCKET, ready["websocket"]) if websocket else (AMQP, ready["port"])
            network = Network(transport, endpoint=("localhost", int(port)), ca_file=ready["ca"])
            connection = Connection("localhost", HUB, connection_string=string, network=network)
            with EmulatorControl("127.0.0.1", int(ready["control"])) as control:
                yield Emulator(control, connection, process.pid)
        finally:
            process.terminate()


def session(
    folder: Path, jars: Sequence[Path] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A Spark session with two cores, these jars and `settings` that keeps its progress reports."""
    more = {"spark.sql.streaming.numRecentProgressUpdates": "100000", "spark.jars": ",".join(map(str, jars))}
    return spark_session("local[2]", folder, {**SESSION, **more, **settings})


def start(
    spark: SparkSession,
    options: Mapping[str, str],
    folder: Path,
    *,
    source: str = "ehbalance",
    sink: str = "noop",
    columns: str | None = None,
    available_now: bool = False,
) -> StreamingQuery:
    """Start a query from `source`, with all columns or with these, to `sink`, with its checkpoint and its output under
    `folder`."""
    reader = spark.readStream.format(source).options(**options)
    writer = (reader if columns is None else reader.schema(columns)).load().writeStream.format(sink)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "sink"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def batches(query: StreamingQuery) -> list[Mapping[str, Any]]:
    reports = (json.loads(each.json) for each in query.recentProgress)
    return [report for report in reports if report["numInputRows"] > 0]
