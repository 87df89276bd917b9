"""Side by side with Spark's own Kafka source: a backlog into a sink that discards it, and the way of an event.

| what | how it is measured |
|---|---|
| events/s | rows / Spark's reported time of their batches, planning and checkpoint included |
| CPU a row | of all processes but broker and emulator, from the query's start until its planner has ended |
| CPU of a start | the same of a query that reads a few events: what each CPU a row has in it, by its number of rows |
| event to sink | time from an event's arrival to the end of its batch, at a steady 1,000 events a second |

Runs of both alternate; each ratio is that of two runs in a row. Broker and connector come from Maven.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.common import Bar, Log, Row, batches, emulator, start
from bench.latency import PARTITIONS, Producer, finished, offset_of, under_load, wait_for
from bench.processes import await_planners, cpu_by_part

SUBJECT = "kafka"

#: What the broker needs; it brings the rest. 4.1 is the newest that runs with Java 17 and whose tools are on Maven.
_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.kafka:kafka-tools:4.1.0", "org.slf4j:slf4j-simple:1.7.36")

#: The connector without what Spark has; the token provider is not published for each version.
_CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)

#: The columns that have what Kafka's have, but for topic and timestamp type, which are constants.
_SAME = "body binary, partition string, sequenceNumber long, enqueuedTime timestamp, partitionKey string"

SIZE = 1024

#: Events of a small batch.
_BATCH = 250_000

#: Events that take no time.
_FEW = 800

#: Runs before those that count: Java compiles for so long.
_WARM_UP = 2

#: Of the broker's process: as Spark's JVM has by default.
_HEAP = "-Xmx1g"

_STARTS_WITHIN = 60.0


class Unavailable(Exception):
    """Broker or connector cannot be had; says why."""


class Jars(NamedTuple):
    """The files of broker and connector."""

    broker: list[Path]
    connector: list[Path]


class Case(NamedTuple):
    """A backlog, and how it is read: with which columns, in batches of how many events (None: all in one)."""

    partitions: int
    events: int
    batch: int | None
    columns: str | None
    rate: Bar | None = None
    cpu: Bar | None = None

    @property
    def start_only(self) -> bool:
        """Whether it has so few events that nothing but the start of a query is measured."""
        return self.events <= _FEW

    @property
    def what(self) -> str:
        """For the report."""
        size = "in one batch" if self.batch is None else f"in batches of {self.batch:,}"
        return f"{self.partitions} partitions, {size}, {'all nine' if self.columns is None else 'five'} columns"


CASES = [
    Case(8, _FEW, None, _SAME),
    Case(8, 2_000_000, None, _SAME, Bar("least", 1.5), Bar("most", 1.15)),
    Case(8, 2_000_000, None, None, Bar("least", 1.5), Bar("most", 1.3)),
    Case(8, 2_000_000, _BATCH, _SAME, Bar("least", 1.2), Bar("most", 1.15)),
    Case(8, 2_000_000, _BATCH, None, Bar("least", 1.2), Bar("most", 1.3)),
    Case(1, 500_000, _BATCH, _SAME),
    Case(32, 2_000_000, _BATCH, _SAME),
]


class Flow(NamedTuple):
    """One run: events per second, and µs of CPU per event."""

    rate: float
    cpu: float


def fetch(folder: Path) -> Jars:
    """Fetch what is needed by Maven. Raises `Unavailable`."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise Unavailable("it needs Maven (mvn) and Java")
    return Jars(_copied(folder / "broker", _BROKER), _copied(folder / "connector", _CONNECTOR, alone=True))


def _copied(folder: Path, artifacts: Sequence[str], *, alone: bool = False) -> list[Path]:
    """Have Maven copy these artifacts to a folder, with what they depend on unless they are `alone`."""
    none = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    needed = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(*each.split(":"))
        + (none if alone else "")
        + "</dependency>"
        for each in artifacts
    )
    folder.mkdir(parents=True)
    pom = folder / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>'
        f"<artifactId>bench</artifactId><version>1</version><dependencies>{needed}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Unavailable(f"Maven cannot fetch {', '.join(artifacts)}: {(done.stdout or done.stderr).strip()[-300:]}")
    return sorted(folder.glob("*.jar"))


def measure(
    spark: SparkSession,
    jars: Jars,
    folder: Path,
    log: Log,
    *,
    cases: Sequence[Case],
    share: float,
    seconds: float,
    runs: int,
) -> Iterator[Row]:
    """Measure each case, with the fraction `share` of its events; and the way of an event for `seconds`."""
    with broker(jars, folder / "kafka") as servers:
        for number, case in enumerate(cases):
            events = int(case.events * share) // case.partitions * case.partitions
            topic, run_folder = f"topic-{number}", folder / f"case-{number}"
            log(f"{case.what}: sending {events:,} events to both")
            with emulator(case.partitions) as server:
                for partition in range(case.partitions):
                    server.fill(partition, b"x" * SIZE, events // case.partitions)
                _fill(spark, servers, topic, case.partitions, events)
                ours = {"connectionString": server.address, "startingPosition": "earliest"}
                ours |= {} if case.batch is None else {"maxEventsPerTrigger": str(case.batch)}
                kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
                kafka |= {} if case.batch is None else {"maxOffsetsPerTrigger": str(case.batch)}
                flows: list[tuple[Flow, Flow]] = []
                for run in range(-_WARM_UP, runs):
                    log(f"{case.what}: " + (f"run {run + 1} of {runs}" if run >= 0 else "warming up"))
                    found = (
                        _flow(spark, run_folder / f"ours-{run}", "ehbalance", ours, case.columns, events),
                        _flow(spark, run_folder / f"kafka-{run}", "kafka", kafka, None, events),
                    )
                    flows += [found] if run >= 0 else []
                delete_topic(spark, servers, topic)
            if case.start_only:
                starts = [(one.cpu * events / 1e6, other.cpu * events / 1e6) for one, other in flows]
                yield ratio("CPU of a start, s", starts)
                continue
            yield ratio(f"{case.what}: events/s", [(one.rate, other.rate) for one, other in flows], bar=case.rate)
            yield ratio(f"{case.what}: CPU a row, µs", [(one.cpu, other.cpu) for one, other in flows], bar=case.cpu)
        yield ratio(
            "event to sink, median, ms", _latencies(spark, servers, folder, log, seconds, runs), bar=Bar("most", 0.3)
        )


def ratio(what: str, runs: Sequence[tuple[float, float]], subject: str = SUBJECT, bar: Bar | None = None) -> Row:
    """The ratios of ours to Kafka's, from the runs of both."""
    ratios = tuple(one / other for one, other in runs)
    ours, kafka = zip(*runs, strict=True)
    return Row(subject, what, "× Kafka", ratios, bar, {"ehbalance": ours, "Kafka": kafka})


def _flow(
    spark: SparkSession, folder: Path, source: str, options: dict[str, str], columns: str | None, events: int
) -> Flow:
    before = cpu_by_part()
    query = start(spark, options, folder, source=source, columns=columns, available_now=True)
    query.awaitTermination()
    await_planners()
    after = cpu_by_part()
    if (rows := sum(batch["numInputRows"] for batch in batches(query))) != events:
        raise RuntimeError(f"{source} has read {rows} of {events} events")
    took = sum(batch["durationMs"]["triggerExecution"] for batch in batches(query)) / 1000
    cpu = sum(after[part] - before.get(part, 0.0) for part in ("JVM", "Python"))
    return Flow(events / took, cpu / events * 1e6)


def _fill(spark: SparkSession, servers: str, topic: str, partitions: int, events: int) -> None:
    create_topic(spark, servers, topic, partitions)
    rows = spark.range(events).selectExpr(f"repeat('x', {SIZE}) value", f"cast(id % {partitions} as int) partition")
    sent = rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    # Otherwise 32 partitions at once time out: each has a batch of its own, and its own order to keep.
    sent.options(**{"kafka.enable.idempotence": "false", "kafka.batch.size": "262144", "kafka.linger.ms": "20"}).save()


def create_topic(spark: Any, servers: str, topic: str, partitions: int) -> None:
    """Create a topic, and wait until the broker has it."""
    wanted = spark._jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
    with _admin(spark, servers) as admin:
        admin.createTopics(spark._jvm.java.util.List.of(wanted)).all().get()


def delete_topic(spark: Any, servers: str, topic: str) -> None:
    """Its gigabytes would take the page cache from the next."""
    with _admin(spark, servers) as admin:
        admin.deleteTopics(spark._jvm.java.util.List.of(topic)).all().get()


@contextlib.contextmanager
def _admin(spark: Any, servers: str) -> Iterator[Any]:
    java = spark._jvm
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(
        java.java.util.HashMap({"bootstrap.servers": servers})
    )
    try:
        yield admin
    finally:
        admin.close()


def _latencies(
    spark: Any, servers: str, folder: Path, log: Log, seconds: float, runs: int
) -> list[tuple[float, float]]:
    """The median times from an event's arrival to the end of its batch, of each run, in milliseconds."""
    found = []
    for run in range(runs + 1):
        log(f"event to sink: run {run} of {runs}, {seconds:g} s each")
        run_folder = folder / f"latency-{run}"
        with emulator(PARTITIONS) as server:
            options = {"connectionString": server.address, "leaseTable": f"{run_folder / 'leases'}"}
            query = start(spark, options | {"startingPosition": "earliest"}, run_folder / "ours")
            ours = _median_latency(query, Producer(server.append, PARTITIONS), seconds, _our_ranges)
        topic = f"latency-{run}"
        create_topic(spark, servers, topic, PARTITIONS)
        with _kafka_sender(spark, servers, topic) as to_topic:
            options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
            query = start(spark, options, run_folder / "kafka", source="kafka")
            kafka = _median_latency(query, Producer(to_topic, PARTITIONS), seconds, _kafka_ranges)
        found += [(ours, kafka)] if run else []
    return found


Ranges = Callable[[Mapping[str, Any]], Iterator[tuple[str, int, int]]]


def _median_latency(query: StreamingQuery, producer: Producer, seconds: float, ranges_of: Ranges) -> float:
    producer.send(PARTITIONS)
    wait_for(query, producer.sent)
    times = [
        finished(batch) - producer.arrival(partition, number)
        for batch in under_load(query, producer, seconds)
        for partition, first, end in ranges_of(batch)
        for number in range(first, end)
    ]
    query.stop()
    return 1000 * statistics.median(times)


def _our_ranges(batch: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    for partition, each in offset_of(batch)["partitions"].items():
        yield partition, each["from"], each["to"]


def _kafka_ranges(batch: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    first, end = (batch["sources"][0][name] for name in ("startOffset", "endOffset"))
    for topic, ends in end.items():
        for partition, number in ends.items():
            yield partition, first[topic][partition], number


@contextlib.contextmanager
def _kafka_sender(spark: Any, servers: str, topic: str) -> Iterator[Callable[[int, list[bytes]], None]]:
    """A function that appends bodies to a partition, and returns when they have arrived."""
    java = spark._jvm
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = {"bootstrap.servers": servers, "key.serializer": serializer, "value.serializer": serializer}
    producer = java.org.apache.kafka.clients.producer.KafkaProducer(java.java.util.HashMap(settings))

    def send(partition: int, bodies: list[bytes]) -> None:
        for body in bodies:
            producer.send(
                java.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, None, bytearray(body))
            )
        producer.flush()

    try:
        yield send
    finally:
        producer.close()


@contextlib.contextmanager
def broker(jars: Jars, folder: Path) -> Iterator[str]:
    """Start a broker that keeps its data in `folder`; yields its address."""
    folder.mkdir()
    port, controller = _free_port(), _free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@localhost:{controller}",
        "listeners": f"PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", _HEAP, "-cp", ":".join(map(str, jars.broker))]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    form = ["kafka.tools.StorageTool", "format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config", str(properties)]
    subprocess.run([*java, *form], check=True, capture_output=True, timeout=120)
    with (folder / "log").open("w") as output:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_for_port(port, process)
            yield f"localhost:{port}"
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.2)
    raise Unavailable(f"the broker has not started within {_STARTS_WITHIN:g} s")
