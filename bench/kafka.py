"""Kafka's broker and Spark's connector, for comparisons. Maven fetches both."""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark

#: The broker's artifacts; their dependencies are fetched too. 4.1 is the newest version that runs with Java 17 and has
#: its tools on Maven.
_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.kafka:kafka-tools:4.1.0", "org.slf4j:slf4j-simple:1.7.36")

#: The connector's artifacts, without those that Spark includes. The token provider is not published for every version.
_CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)

_START_TIMEOUT = 60.0


class Unavailable(Exception):
    """The broker or the connector cannot be fetched or started."""


class Jars(NamedTuple):
    broker: list[Path]
    connector: list[Path]


@functools.cache  # the session needs the connector before the broker starts
def fetch(folder: Path) -> Jars:
    """Fetch the broker and the connector with Maven. Raises `Unavailable`."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise Unavailable("Maven (mvn) and Java are needed")
    return Jars(_copy_jars(folder / "broker", _BROKER), _copy_jars(folder / "connector", _CONNECTOR, alone=True))


def _copy_jars(folder: Path, artifacts: Sequence[str], *, alone: bool = False) -> list[Path]:
    """Copy these artifacts to a folder, together with their dependencies unless `alone`."""
    none = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    needed = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(*artifact.split(":"))
        + (none if alone else "")
        + "</dependency>"
        for artifact in artifacts
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


@contextlib.contextmanager
def broker(jars: Jars, folder: Path) -> Iterator[str]:
    """Start a broker that keeps its data in `folder`, and yield its address. Raises `Unavailable`."""
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
    java = ["java", "-Xmx1g", "-cp", ":".join(map(str, jars.broker)), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
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


@contextlib.contextmanager
def topic(spark: Any, servers: str, name: str, partitions: int) -> Iterator[str]:
    """Create a topic, and delete it afterwards, because its gigabytes would displace the next topic from the page
    cache."""
    java = spark._jvm
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(
        java.java.util.HashMap({"bootstrap.servers": servers})
    )
    try:
        wanted = java.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
        admin.createTopics(java.java.util.List.of(wanted)).all().get()
        yield name
        admin.deleteTopics(java.java.util.List.of(name)).all().get()
    finally:
        admin.close()


class Sender:
    """Appends bodies to the partitions of a topic."""

    def __init__(self, spark: Any, servers: str, name: str) -> None:
        self._clients, self._topic = spark._jvm.org.apache.kafka.clients.producer, name
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"bootstrap.servers": servers, "key.serializer": serializer, "value.serializer": serializer}
        self._producer = self._clients.KafkaProducer(spark._jvm.java.util.HashMap(settings))

    def append(self, partition: int, bodies: list[bytes]) -> None:
        """Append the bodies, and return when all have arrived."""
        for body in bodies:
            self._producer.send(self._clients.ProducerRecord(self._topic, partition, None, bytearray(body)))
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.2)
    raise Unavailable(f"the broker did not start within {_START_TIMEOUT:g} s")
