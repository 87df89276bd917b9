"""The jobs, each with its settings, with what it is to do, with how far it has come, and with a check of its result."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import deltalake
from azure.eventhub import EventData, EventHubConsumerClient
from deltalake.exceptions import DeltaError

from chaos.processes import wait_for
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Lease, Member
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position

PARTITIONS = 4

#: Events of each hub: with so many in a batch a job has much to do after its first one.
EVENTS, BATCH = 6_000, 1_000


class Case(ABC):
    """One run of a job on files in a new `folder`, and on hubs of its own. `name` is the job's. Every `look` seconds it
    is asked how much is `done`, to catch it in the middle of its work."""

    name: ClassVar[str]
    look: ClassVar[float] = 0.1

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self.folder, self.emulator = folder, emulator
        self.killed = False  # whether a run of the job was
        self.hub = f"hub-{folder.name}"
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make what the job works on."""

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The job's settings besides those in its file, without their common prefix."""

    def environment(self) -> dict[str, str]:
        """More variables of the environment."""
        return {"EHBALANCE_CONNECTION_STRING": self.emulator.connection_string(self.hub)}

    @abstractmethod
    def done(self) -> tuple[int, int]:
        """How much of the work is done, and of how much. In between the job is in the middle of it."""

    @abstractmethod
    def check(self) -> tuple[str, list[str]]:
        """What the job has made, for people, and what is wrong with it."""


#: The numbers of the events of each partition.
NUMBERS = range(EVENTS // PARTITIONS)


def fill(
    emulator: Emulator, hub: str, numbers: range = NUMBERS, body: Callable[[int], str] = str
) -> Counter[tuple[object, ...]]:
    """Send to each partition of a hub events with these `numbers`, which are their sequence numbers too. Returns the
    partition, sequence number and body of each."""
    emulator.add_hub(hub, PARTITIONS)
    sent = Counter[tuple[object, ...]]()
    for partition in map(str, range(PARTITIONS)):
        bodies = [*map(body, numbers)]
        emulator.append(hub, partition, [body.encode() for body in bodies])
        sent.update((partition, number, body) for number, body in zip(numbers, bodies, strict=True))
    return sent


def held(table: Path, columns: Collection[str]) -> Counter[tuple[object, ...]]:
    """The rows of the Delta table, which may not exist yet, in these columns."""
    with contextlib.suppress(DeltaError, OSError):
        rows = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=[*columns])
        return Counter(zip(*(rows[name].to_pylist() for name in columns), strict=True))
    return Counter()


def count(table: Path) -> int:
    """The number of rows of the Delta table, which may not exist yet."""
    with contextlib.suppress(DeltaError, OSError):
        return deltalake.DeltaTable(str(table)).count()
    return 0


def differences(found: Counter[tuple[object, ...]], sent: Counter[tuple[object, ...]], what: str) -> list[str]:
    """What is missing and what is too much, in a line each."""
    lines = []
    for verb, rows in (("missing from", sent - found), ("too many in", found - sent)):
        if rows:
            lines.append(f"{rows.total():,} rows are {verb} {what}, such as {next(iter(rows))}")
    return lines


def stream(folder: Path) -> dict[str, str]:
    """The settings of a stream that reads what is there."""
    return {
        "checkpointLocation": f"{folder}/checkpoint",
        "trigger": "availableNow",
        "source.leaseTable": f"{folder}/leases",
        "source.maxEventsPerTrigger": str(BATCH),
    }


class StreamToDelta(Case):
    """Every event is in the table once."""

    name = "stream_to_delta"
    columns = ("partition", "sequenceNumber", "body")

    def prepare(self) -> None:
        self.sent = fill(self.emulator, self.hub)

    def settings(self) -> dict[str, str]:
        return stream(self.folder) | {"table": f"{self.folder}/table"}

    def done(self) -> tuple[int, int]:
        return count(self.folder / "table"), EVENTS

    def check(self) -> tuple[str, list[str]]:
        found = held(self.folder / "table", self.columns)
        return f"{found.total():,} rows of {EVENTS:,} events", differences(found, self.sent, "the table")


class BatchToDelta(StreamToDelta):
    """The events of a time range are in the table once, and no others."""

    name = "batch_to_delta"

    def prepare(self) -> None:
        """There are events before and after the range."""
        first, last = 100, 100 + len(NUMBERS)
        fill(self.emulator, self.hub, range(first))
        self.begin = _next_second()
        self.sent = fill(self.emulator, self.hub, range(first, last))
        self.end = _next_second()
        fill(self.emulator, self.hub, range(last, last + 100))

    def settings(self) -> dict[str, str]:
        times = {"from": self.begin, "to": self.end}
        limits = {name: datetime.fromtimestamp(at, timezone.utc).isoformat() for name, at in times.items()}
        return {"table": f"{self.folder}/table", "maxEventsPerCommit": str(BATCH), **limits}


def _next_second() -> int:
    """Wait until a second has begun. Returns it."""
    second = int(time.time()) + 1
    while time.time() < second:
        time.sleep(0.01)
    return second


class ParseToDelta(StreamToDelta):
    """Every event is in one of the two tables once: its fields, or its body with the reason."""

    name = "parse_to_delta"

    def prepare(self) -> None:
        fill(self.emulator, self.hub, body=_made)
        each = [(str(partition), number) for partition in range(PARTITIONS) for number in NUMBERS]
        self.parsed = Counter[tuple[object, ...]]((*at, f"event {at[1]}", at[1]) for at in each if at[1] % 10)
        self.rejected = Counter[tuple[object, ...]]((*at, _made(at[1]).encode()) for at in each if not at[1] % 10)

    def settings(self) -> dict[str, str]:
        return super().settings() | {"rejected": f"{self.folder}/rejected"}

    def done(self) -> tuple[int, int]:
        return count(self.folder / "table") + count(self.folder / "rejected"), EVENTS

    def check(self) -> tuple[str, list[str]]:
        parsed = held(self.folder / "table", ("partition", "sequenceNumber", "id", "delay"))
        rejected = held(self.folder / "rejected", ("partition", "sequenceNumber", "body"))
        wrong = differences(parsed, self.parsed, "the table") + differences(rejected, self.rejected, "the rejected one")
        reasons = held(self.folder / "rejected", ("reason",))
        wrong += [f"{rows} rows are rejected without a reason" for (reason,), rows in reasons.items() if not reason]
        return f"{parsed.total():,} rows and {rejected.total():,} rejected of {EVENTS:,} events", wrong


def _made(number: int) -> str:
    """Every tenth body cannot be parsed: it is cut off, or lacks a field."""
    if number % 20 == 0:
        return f'{{"id": "event {number}'
    return json.dumps({"id": f"event {number}", "delay": number} if number % 10 else {"delay": number})


class CopyHub(Case):
    """Every event is in the other hub with its key and its properties, and those of a key in their order. After a kill
    events may be there twice."""

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

    def settings(self) -> dict[str, str]:
        return stream(self.folder)

    def environment(self) -> dict[str, str]:
        return super().environment() | {"EHBALANCE_SINK_CONNECTION_STRING": self.emulator.connection_string(self.copy)}

    def done(self) -> tuple[int, int]:
        return sum(_ends(self.emulator, self.copy)), EVENTS

    def check(self) -> tuple[str, list[str]]:
        sent, found = (read_hub(self.emulator, hub) for hub in (self.hub, self.copy))
        repeated, wrong = copy_differences(sent, found)
        wrong += [f"{repeated} events are there twice"] if repeated and not self.killed else []
        return f"{sum(map(len, found.values())):,} of {EVENTS:,} events, {repeated:,} of them twice", wrong


#: By key and partition, in order: the body and the properties, with their types, of each event.
Events = Mapping[tuple[str, str], list[tuple[object, ...]]]


def copy_differences(sent: Events, found: Events) -> tuple[int, list[str]]:
    """How many events were found more than once, and what else is wrong."""
    partitions = Counter(key for key, _ in found)
    wrong = [f"{key} is in {count} partitions" for key, count in partitions.items() if count > 1]
    by_key = {key: [*dict.fromkeys(events)] for (key, _), events in found.items()}  # each as it has come first
    for (key, _), events in sent.items():
        if by_key.get(key) != events:
            missing = Counter(events) - Counter(by_key.get(key, []))
            what = f"{missing.total()} events are missing" if missing else "events are too many, or not in order"
            wrong.append(f"of {key} {what}")
    return sum(len(events) - len({*events}) for events in found.values()), wrong


def _ends(emulator: Emulator, hub: str) -> list[int]:
    """The number of events of each partition."""
    ends = list[int]()
    with contextlib.suppress(ValueError):  # there are no more
        while True:
            ends.append(emulator.partition_state(hub, len(ends)).next_sequence_number)
    return ends


def read_hub(emulator: Emulator, hub: str) -> Events:
    """All events, read by Azure's own client. Raises `TimeoutError`."""
    found, total = defaultdict[tuple[str, str], list[tuple[object, ...]]](list), sum(_ends(emulator, hub))

    def add(context: Any, events: list[EventData]) -> None:
        for event in events:
            properties = sorted((str(name), repr(value)) for name, value in (event.properties or {}).items())
            key = (event.partition_key or b"").decode()
            found[key, context.partition_id].append((event.body_as_str(), *properties))

    client = EventHubConsumerClient.from_connection_string(
        emulator.connection_string(hub), "$Default", load_balancing_interval=0.5, socket_timeout=0.05
    )
    how = {"starting_position": "-1", "max_batch_size": 1000, "max_wait_time": 1}
    thread = threading.Thread(target=client.receive_batch, args=(add,), kwargs=how, daemon=True)
    with client:
        thread.start()
        wait_for(lambda: sum(map(len, found.values())) >= total, f"the events of {hub} are read", 120)
    thread.join()
    return found


#: The groups of the lease tables that are made here.
_GROUP, _TABLES = Group("namespace.servicebus.windows.net", "hub", "$default"), 200


def make_lease_table(table: Path) -> None:
    """Make a lease table with a history, whose old files and members have been there for an hour."""
    now, change = (
        time.time_ns() // 1_000_000 - 3_600_000,
        OwnershipChange(1, "0", "Claim", None, "job-1", 1, None, "job-1"),
    )
    ids = [*map(str, range(PARTITIONS))]
    leases = {id: Lease(id, "job-1", 3, 5, now, now, Position(9), lag=Lag(10, 51 + int(id), now, now)) for id in ids}
    members = {"job-1": Member("job-1", "x", 1, renewed_at_ms=now, started_at_ms=now, host="host-1")}
    with DeltaStore(str(table)) as store:
        store.create(_GROUP)
        for number in range(5):
            base = store.read()
            store.write(base, replace(base, leases=leases, members=members, lease_duration_ms=30_000 + number))
            store.record([replace(change, at_ms=number + 1, epoch=number + 1)])
        old = time.time() - 3700
        for each in (
            file for folder in (table, table.with_name(f"{table.name}_history")) for file in folder.rglob("*")
        ):
            if each.is_file():
                os.utime(each, (old, old))
        base = store.read()
        store.write(base, replace(base, lease_duration_ms=60_000))


class MaintainLeases(Case):
    """Of every table and its history the old files are gone, and nothing else."""

    name, look = "maintain_leases", 0.01

    def prepare(self) -> None:
        first = self.folder / "leases/group-0"
        first.parent.mkdir()
        make_lease_table(first)
        self.tables = [first, *(first.with_name(f"group-{number}") for number in range(1, _TABLES))]
        for table in self.tables[1:]:
            for suffix in ("", "_history"):
                shutil.copytree(f"{first}{suffix}", f"{table}{suffix}")
        (first / "notes.txt").write_text("somebody's")
        self.before = _state(first)

    def settings(self) -> dict[str, str]:
        return {"leaseTables": f"{self.folder}/leases"}

    def done(self) -> tuple[int, int]:
        return sum(len([*table.glob("lease-*.parquet")]) == 1 for table in self.tables), len(self.tables)

    def check(self) -> tuple[str, list[str]]:
        wrong = [f"{table} has another state or history" for table in self.tables if _state(table) != self.before]
        kept = self.tables[0] / "notes.txt"
        wrong += [] if kept.is_file() else [f"{kept}, which is somebody's, is gone"]
        for table in self.tables:
            files = len(deltalake.DeltaTable(f"{table}_history").file_uris())
            wrong += [] if files == 1 else [f"the history of {table} has {files} files"]
        done, of = self.done()
        wrong += [] if done == of else [f"{of - done} tables have old files"]
        return f"{done} of {of} tables", wrong


def _state(table: Path) -> tuple[object, ...]:
    with DeltaStore(str(table)) as store:
        found = store.read()
        return found.leases, found.members, found.lease_duration_ms, tuple(store.history())


class GroupReport(Case):
    """Every run that is in the table is there whole, and the page has every group."""

    name, look = "group_report", 0.005
    tables = 20

    def prepare(self) -> None:
        self.leases = [self.folder / f"leases/group-{number}" for number in range(self.tables)]
        self.leases[0].parent.mkdir()
        for table in self.leases:
            make_lease_table(table)

    def settings(self) -> dict[str, str]:
        return {
            "leaseTables": f"{self.folder}/leases",
            "table": f"{self.folder}/report",
            "page": f"{self.folder}/page.html",
        }

    def done(self) -> tuple[int, int]:
        """Rows are written first."""
        return any((self.folder / "report").glob("*.parquet")) + (self.folder / "page.html").exists(), 2

    def check(self) -> tuple[str, list[str]]:
        rows = held(self.folder / "report", ("reportedAt", "leaseTable", "partition", "lagEvents"))
        runs = {at for at, *_ in rows}
        whole = {(str(t), str(p), 41 + p) for t in self.leases for p in range(PARTITIONS)}
        sent = Counter((at, *row) for at in runs for row in whole)
        wrong = differences(rows, sent, "the report") if runs else ["no run is in the report"]
        page = (self.folder / "page.html").read_text() if (self.folder / "page.html").exists() else ""
        wrong += [f"{table} is not on the page" for table in self.leases if f">{table}<" not in page]
        wrong += [] if page.endswith("</html>") else ["the page is not whole"]
        return f"{rows.total()} rows of {len(runs)} runs, page of {len(page):,} characters", wrong


CASES: tuple[type[Case], ...] = (StreamToDelta, BatchToDelta, ParseToDelta, CopyHub, MaintainLeases, GroupReport)
