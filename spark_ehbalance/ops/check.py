"""`ehbalance check`: whether a stream can run here, line by line."""

from __future__ import annotations

import json
import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import (
    ClientVersionError,
    ConflictError,
    HubUnavailableError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreReplacedError,
)
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.receiver import Disconnected, PartitionAddress, Receiver
from spark_ehbalance.eventhub.refusals import Unreachable
from spark_ehbalance.eventhub.wire.client import TESTED, untested_version
from spark_ehbalance.group.changes import AddPartitions, Claim, Heartbeat, Join, Renew
from spark_ehbalance.group.defaults import LEASE_DURATION
from spark_ehbalance.group.durations import STORE_SHARE
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import START_OFFSET, Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import LeaseTable, commit
from spark_ehbalance.lease_table.opening import beside, open_store
from spark_ehbalance.ops.arguments import AsJson, BlobNamespace, HubOptions, StorageOptions
from spark_ehbalance.ops.common import cell, console, now_ms
from spark_ehbalance.query.options import Options

#: Width of the longest name of a line.
_NAME_WIDTH = len("compare-and-swap")

#: Seconds for the hub to accept or refuse a receiver.
_PATIENCE = 10.0

#: Concurrent claims: storage without compare-and-swap accepts both nearly every time.
_RACES = 5

#: A starting position with an offset, which some stores need.
_START = Position(-1, START_OFFSET)

_LISTEN = "that the credential has the role Azure Event Hubs Data Receiver, or the key the right Listen"

_RIGHTS = (
    "give the credential the right to list, read, write and delete there, such as Storage Blob Data Contributor, and "
    "check that this machine may reach the storage"
)

_INSTALL = f"pip install azure-eventhub=={TESTED}"

#: A member and its own connection to the table.
_Side = tuple[LeaseTable, Author]


class Verdict(str, Enum):
    """The result of one test."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}


class Line(NamedTuple):
    """One line of the output: what was tested, the result, and the remedy if there is one."""

    what: str
    verdict: Verdict
    text: str
    remedy: str = ""


def check(
    hub: HubOptions,
    storage: StorageOptions,
    lease_table: Annotated[
        str | None, typer.Argument(help="Path or address of the lease table; without it the event hub alone.")
    ] = None,
    blob_namespace: BlobNamespace = None,
    as_json: AsJson = False,
) -> None:
    """Try the event hub, the right to read, and the compare-and-swap of the lease table's storage.

    A receiver is attached, without disturbing others. The storage is tried with a table of its own beside the lease
    table, which is removed again. The exit code is 1 if something failed.
    """
    lines = list[Line]()
    for line in _lines(hub.options(lease_table, storage, blob_namespace)):
        lines.append(line)
        if not as_json:
            _show(console(), line)
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in lines], indent=2))
    if any(each.verdict is Verdict.FAILED for each in lines):
        raise typer.Exit(1)


def _show(out: Console, line: Line) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=max(len(each.value) for each in Verdict))
    grid.add_column(width=_NAME_WIDTH)
    grid.add_row(Text(line.verdict.value, _STYLES[line.verdict]), line.what, cell(line.text))
    if line.remedy:
        grid.add_row("", "", cell(f"→ {line.remedy}"))
    out.print(grid)


def _lines(options: Options) -> Iterator[Line]:
    if (reason := untested_version()) is not None:
        yield Line("azure-eventhub", Verdict.WARNING, reason, f"if something fails: {_INSTALL}")
    yield from _hub(options)
    if options.lease_table is not None:
        yield _table(options, options.lease_table)
        yield from _storage(options.lease_table, options.storage_options)


# --- the event hub ---------------------------------------------------------------------------------------------------


def _hub(options: Options) -> Iterator[Line]:
    what, connection = "event hub", options.connection
    try:
        with HubMetadata(connection, options.consumer_group) as metadata:
            partitions = metadata.partition_ids()
            states = metadata.partition_states(partitions[:1])
    except (ClientVersionError, HubUnavailableError) as error:
        yield _failure(
            what, error, f"check the names of namespace and hub, the way to it (docs/networks.md), and {_LISTEN}"
        )
        return
    yield Line(what, Verdict.OK, f"{connection.hub!r} at {connection.namespace} has {len(partitions)} partitions")
    for partition in states:
        yield _reading(options, partition)


def _reading(options: Options, partition: str) -> Line:
    """Attach a receiver without an owner level, which disturbs no query."""
    what, where = "reading", f"consumer group {options.consumer_group!r}, partition {partition}"
    address = PartitionAddress(options.connection, options.consumer_group, partition)
    receiver = Receiver(address, START_OFFSET, owner_level=None, prefetch=1)
    try:
        receiver.confirm(_PATIENCE)
    except Disconnected as other:
        return Line(what, Verdict.OK, f"{where}: read by another reader, with owner level {other.epoch or 0}")
    except (ClientVersionError, HubUnavailableError, Unreachable) as error:
        return _failure(what, error, f"check that the consumer group {options.consumer_group!r} exists, and {_LISTEN}")
    finally:
        receiver.close()
    return Line(what, Verdict.OK, f"{where}: attached")


def _failure(what: str, error: Exception, remedy: str) -> Line:
    return Line(what, Verdict.FAILED, str(error), _INSTALL if isinstance(error, ClientVersionError) else remedy)


# --- the storage -----------------------------------------------------------------------------------------------------


def _table(options: Options, location: str) -> Line:
    """Read the lease table, if there is one."""
    what = "lease table"
    with open_store(location, options.storage_options, group=options.group) as store:
        try:
            found = store.read() if store.exists() else None
        except StoreError as error:
            return Line(what, Verdict.FAILED, str(error), f"choose another lease table, or {_RIGHTS}")
    if found is None:
        return Line(what, Verdict.OK, f"there is none at {location} yet: the first query creates it")
    if found.group != options.group:
        remedy = "give each group its own lease table"
        return Line(what, Verdict.FAILED, f"it belongs to {found.group}, not to {options.group}", remedy)
    return Line(what, Verdict.OK, f"{found.group}: {len(found.leases)} partitions")


def _storage(location: str, options: Mapping[str, str]) -> Iterator[Line]:
    """Try the storage with a table beside the one at `location`, and remove it again."""
    trial, group = beside(location, f"check_{uuid.uuid4().hex[:12]}")
    first, second = (open_store(trial, options, group=group) for _ in range(2))
    with first, second:
        try:
            yield from _tried(first, second, group)
        except StoreFormatError as error:  # a foreign file is in its place
            yield Line("storage", Verdict.FAILED, str(error), "move it away")
            return
        except StoreError as error:
            yield Line("storage", Verdict.FAILED, str(error), _RIGHTS)
        try:
            first.erase()
        except StoreError as error:
            yield Line("removal", Verdict.FAILED, str(error), f"{_RIGHTS}; then remove {trial} by hand")


def _tried(first: LeaseTable, second: LeaseTable, group: Group) -> Iterator[Line]:
    partitions = tuple(str(each) for each in range(_RACES))
    sides = ((first, Author("ann", "1")), (second, Author("bob", "1")))
    first.create(group)
    for store, by in sides:  # a container knows what was written through it
        add = AddPartitions(by=by, at_ms=now_ms(), partitions=partitions, checkpoint=_START)
        commit(store, store.read(), [Join(by=by, at_ms=now_ms()), add])
    what = "compare-and-swap"
    try:
        won = [_accepted_claims(sides, partition) for partition in partitions]
    except (StoreDamagedError, StoreReplacedError):  # both have written the same version
        won = []
    if won == [1] * _RACES:
        yield Line(what, Verdict.OK, f"of two concurrent claims one was accepted, {_RACES} times of {_RACES}")
        yield _latency(first, sides[0][1])
    else:
        yield Line(
            what,
            Verdict.FAILED,
            "two concurrent claims of one partition were accepted, so that two queries would read the same partition",
            "use a storage that creates a file only if there is none, such as Azure's, S3 itself or a local disk",
        )


def _accepted_claims(sides: Sequence[_Side], partition: str) -> int:
    """The number of accepted claims of the partition, each decided before another was written."""
    bases = [store.read() for store, _ in sides]

    def claim(side: _Side, base: Snapshot) -> bool:
        store, by = side
        epoch = base.leases[partition].epoch
        claim = Claim(by=by, at_ms=now_ms(), partition=partition, epoch=epoch, starting_position=_START)
        try:
            return bool(commit(store, base, [claim], attempts=1).accepted)
        except ConflictError:
            return False

    with ThreadPoolExecutor(len(sides)) as pool:
        return sum(pool.map(claim, sides, bases))


def _latency(store: LeaseTable, by: Author) -> Line:
    seconds = list[float]()
    for _ in range(_RACES):
        found, at_ms = store.read(), now_ms()
        own = [Renew(by=by, at_ms=at_ms, partition=x.partition, epoch=x.epoch) for x in found.owned_by(by.id)]
        seconds.append(commit(store, found, [Heartbeat(by=by, at_ms=at_ms), *own]).seconds or 0.0)
    taken = statistics.median(seconds)
    text = f"a commit takes {1000 * taken:.0f} ms (median of {_RACES})"
    if store.capabilities.members:
        members = int(LEASE_DURATION * STORE_SHARE / 3 / max(taken, 0.0001))
        text += f": {members:,} members keep a lease duration of {LEASE_DURATION:g} s, for more it grows"
    return Line("latency", Verdict.OK, text)
