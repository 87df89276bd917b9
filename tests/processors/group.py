"""An emulated hub, an Azurite container, and the members of a group stored in the container."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from azure.eventhub import parse_connection_string
from azure.storage.blob import BlobServiceClient

from chaos.storage.azurite import ACCOUNT, KEY
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.blob.layout import BlobKind, checkpoint, groups, owner, parse_name
from tests.members import AnyMember, Member, Members, repeating
from tests.waiting import wait_until

PARTITIONS = 12

#: All members' balance interval and lease duration in seconds; the SDKs' ratio is also one to six.
INTERVAL, EXPIRY = 1.5, 9.0


@dataclass
class Move:
    """`partition` got a new owner, which reads from `first`, the event after the checkpoint at that time. The former
    owner can read on until it detects that its ownership expired; `end` is the number of events at that time (`until`),
    or None before then."""

    partition: str
    first: int
    until: float
    end: int | None = None


@dataclass
class MixedGroup(Members):
    """A group of queries and processors. `service` is the storage account's address that the members use."""

    emulator: Emulator
    service: str
    container: str
    folder: Path
    hub: str = "hub"
    connection: str = ""
    #: Extra options for all queries; by default, the namespace with its port, as Python's consumers write it.
    more: dict[str, str] | None = None
    interval: float = INTERVAL
    expiry: float = EXPIRY
    members: list[AnyMember] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    partitions: int = PARTITIONS
    appended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = self.connection or self.emulator.connection_string(self.hub)
        namespace = parse_connection_string(self.connection).fully_qualified_namespace
        self.more = {"blobNamespace": namespace} if self.more is None else self.more
        self.appended = self.appended or [0] * self.partitions

    @property
    def options(self) -> dict[str, str]:
        return {
            "connectionString": self.connection,
            "leaseTable": f"{self.service}/{self.container}",
            "storageSecrets.account_key": KEY,
            "startingPosition": "earliest",
            "balanceInterval": f"{self.interval}s",
            "leaseDuration": f"{self.expiry}s",
            "receiverTimeout": "30s",
            **(self.more or {}),
        }

    def consumer(self, name: str, strategy: str = "balanced", max_wait_time: float | None = 0.2) -> Member:
        """A Python consumer. It gets a batch after `max_wait_time` seconds, or as soon as there are events."""
        settings = json.dumps(self._settings(name, strategy) | {"max_wait_time": max_wait_time})
        return self.start(name, sys.executable, "-m", "tests.processors.consumer", settings)

    def javascript(self, name: str, strategy: str = "balanced") -> Member:
        settings = json.dumps(self._settings(name, strategy) | {"modules": str(Path(sys.prefix, "azurite"))})
        return self.start(name, "node", str(Path(__file__).with_name("consumer.cjs")), settings)

    def java(self, name: str, strategy: str = "balanced", *, jars: str) -> Member:
        """A Java consumer; `jars` is its class path."""
        settings = json.dumps(self._settings(name, strategy))
        options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", jars)
        return self.start(name, "java", *options, str(Path(__file__).with_name("Consumer.java")), settings)

    def _settings(self, name: str, strategy: str) -> dict[str, object]:
        return {
            "account": ACCOUNT,
            "key": KEY,
            "service": self.service,
            "container": self.container,
            "connection": self.connection,
            "consumer_group": "$Default",
            "interval": self.interval,
            "expiry": self.expiry,
            "strategy": strategy,
            "seen": str(self.folder / name),
        }

    def query(self, name: str, **more: str) -> Member:
        return self.start_query(name, self.options | more)

    def append(self, count: int) -> None:
        for partition in range(self.partitions):
            self.emulator.append(self.hub, partition, [b"x" * 100] * count)
            self.appended[partition] += count

    def blobs(self) -> Iterator[tuple[BlobKind, str, dict[str, str] | None]]:
        """(kind, partition, metadata) of the group's blobs."""
        with BlobServiceClient(self.service, KEY) as client:
            for blob in client.get_container_client(self.container).list_blobs(include=["metadata"]):
                (group,) = groups([blob.name])
                if parsed := parse_name(group, blob.name):
                    yield *parsed, blob.metadata

    def owners(self) -> dict[str, str | None]:
        """Partition → its owner according to the blobs."""
        return {partition: owner(metadata) for kind, partition, metadata in self.blobs() if kind is BlobKind.OWNERSHIP}

    def checkpoints(self) -> dict[str, int]:
        """Partition → its checkpoint's sequence number; omits partitions without one or with one before the start."""
        found = {p: checkpoint(metadata).position for kind, p, metadata in self.blobs() if kind is BlobKind.CHECKPOINT}
        return {p: event.sequence_number for p, event in found.items() if event and event.sequence_number >= 0}

    def counts(self) -> list[int]:
        return sorted(Counter(owner for owner in self.owners().values() if owner is not None).values())

    def wait_shared(self, *counts: int, timeout: float = 120.0) -> None:
        wait_until(lambda: self.counts() == sorted(counts), f"the owners have {counts}", timeout)

    def stays(self, seconds: float) -> bool:
        """Whether no partition moves for this long, checked five times per interval."""
        before, end = self.owners(), time.monotonic() + seconds
        while time.monotonic() < end:
            if self.owners() != before:
                return False
            time.sleep(self.interval / 5)
        return True

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record all `moves`."""
        before: dict[str, tuple[str | None, int]] = {}

        def look() -> None:
            nonlocal before
            now = self._owners_and_next()
            for partition, (owner_now, next_now) in now.items():
                # There might have been other owners between two checks, and before the first check.
                owner_before, next_before = before.get(partition, (None, next_now))
                if owner_before != owner_now:
                    # The former owner reads once per interval, and seconds later on a busy machine.
                    until = time.monotonic() + 2 * self.expiry
                    self.moves.append(Move(partition, min(next_before, next_now), until))
            for move in self.moves:
                if move.end is None and time.monotonic() > move.until:
                    move.end = self.appended[int(move.partition)]
            before = now

        with repeating(0.05, look):
            yield

    def _owners_and_next(self) -> dict[str, tuple[str | None, int]]:
        """Partition → (its owner, the event after its checkpoint)."""
        owners: dict[str, str | None] = {}
        numbers: dict[str, int] = {}
        for kind, partition, metadata in self.blobs():
            if kind is BlobKind.OWNERSHIP:
                owners[partition] = owner(metadata)
            elif position := checkpoint(metadata).position:
                numbers[partition] = position.next
        return {partition: (owner, numbers.get(partition, 0)) for partition, owner in owners.items()}

    def check_read_twice(self) -> int:
        """The number of events that were read more than once. Asserts that a move explains each of them: it lies after
        the checkpoint at that time, and before the former owner detected that its ownership had expired."""
        twice = [event for event, times in self.read_events().items() if times > 1]
        unexplained = [event for event in twice if not any(_explains(move, *event) for move in self.moves)]
        assert not unexplained, f"read twice where no partition has moved: {unexplained}; moves: {self.moves}"
        return len(twice)

    @contextlib.contextmanager
    def producing(self) -> Iterator[None]:
        """Sends 20 events a second to every partition."""
        with repeating(0.05, lambda: self.append(1)):
            yield

    def missing(self) -> int:
        seen = self.read_events()
        return sum((str(p), n) not in seen for p, end in enumerate(self.appended) for n in range(end))

    def wait_read(self) -> None:
        wait_until(lambda: not self.missing(), "every event was seen")


def _explains(move: Move, partition: str, number: int) -> bool:
    return move.partition == partition and move.first <= number and (move.end is None or number < move.end)
