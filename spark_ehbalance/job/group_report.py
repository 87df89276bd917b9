"""The state of all groups in a folder: as rows of a Delta table, a row for each partition and run, and as a page."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_ehbalance.cli.explain import gathered
from spark_ehbalance.cli.reasons.answer import explain
from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.delta.target import is_path
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.job.group_page import Looked, page
from spark_ehbalance.job.leases import LeaseTables
from spark_ehbalance.job.program import say
from spark_ehbalance.job.settings import PREFIX, SettingError, place, required, table_name
from spark_ehbalance.job.tables import check_delta
from spark_ehbalance.stores.base import LeaseTable
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.opening import location
from spark_ehbalance.values.secrets import shown

#: The table's columns. Of a lease table that cannot be read there is one row, with its `problem`; of a group without
#: partitions one without a `partition`.
COLUMNS = {
    "reportedAt": "timestamp",  # of the run: the same in all its rows
    "leaseTable": "string",
    "problem": "string",  # why the table could not be read
    "namespace": "string",
    "eventHub": "string",
    "consumerGroup": "string",
    "liveMembers": "int",  # of the group
    "partition": "string",
    "state": "string",  # the worst that `ehbalance explain` says of it: ok, note, waits or wrong
    "reason": "string",  # what it says then
    "owner": "string",
    "ownerHost": "string",
    "epoch": "bigint",
    "ownedSince": "timestamp",
    "renewedAt": "timestamp",
    "nextOwner": "string",
    "pinnedTo": "string",
    "sequenceNumber": "bigint",  # of the checkpoint: the last event that was finished
    "offset": "string",  # of the same
    "end": "bigint",  # the sequence number after the hub's last event, as last measured
    "lagEvents": "bigint",
    "lagSeconds": "double",  # for how long the oldest unread event has waited
    "lagMeasuredAt": "timestamp",
    "eventsPerSecond": "double",
}

#: Characters of a text in a row: as many as a path may have.
_LONGEST = 4096


@dataclass(frozen=True, kw_only=True)
class Settings(LeaseTables):
    """The report's settings, checked."""

    table: str = required(table_name)
    page: str = required(place)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.page_file()

    def page_file(self) -> tuple[Folder, str]:
        """The page's folder, which has the same storage options as the lease tables, and its name in there. Raises
        `SettingError`."""
        try:
            folder, _, name = location(self.page).rpartition("/")
            if posixpath.splitext(name)[1] != ".html":
                raise ValueError("a file whose name ends with .html")
        except ValueError as allowed:
            raise SettingError(f"{PREFIX}page={shown(self.page)} is wrong: allowed is {allowed}") from None
        return Folder(folder, self.storage_options(), f"the page {self.page}"), unquote(
            name
        ) if "://" in folder else name


def report(spark: SparkSession, settings: Settings) -> None:
    """Append the state of all groups to the table, and write the page. Raises `SettingError` for a table of something
    else, and `EhBalanceError` if a lease table could not be read, after all that."""
    check_delta(spark, settings.table)
    _check_report(spark, settings.table)
    at = datetime.now(timezone.utc)
    looked = [*looks(settings)]
    _append(spark, settings.table, [row for each in looked for row in rows_of(each, at)])
    write_page(settings, looked, at)
    say(f"{len(looked)} {'group is' if len(looked) == 1 else 'groups are'} in {settings.table} and in {settings.page}")
    if failed := [each.table for each in looked if each.problem]:
        raise EhBalanceError(f"{len(failed)} of {len(looked)} lease tables could not be read, such as {failed[0]}")


def _check_report(spark: SparkSession, table: str) -> None:
    """Raise `SettingError` if there is a table that is no report: it may be a lease table, which would be destroyed."""
    try:
        found = (spark.read.format("delta").load(table) if is_path(table) else spark.table(table)).columns
    except AnalysisException:  # there is none yet
        return
    if found and "reportedAt" not in found:
        raise SettingError(
            f"{PREFIX}table={table} is a Delta table of something else, with a column {shown(found[0])}: choose another"
        )


def _append(spark: SparkSession, table: str, rows: list[Mapping[str, Any]]) -> None:
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    frame = spark.createDataFrame([tuple(map(row.get, COLUMNS)) for row in rows], schema).coalesce(1)
    writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
    writer.save(table) if is_path(table) else writer.saveAsTable(table)


def write_page(settings: Settings, looked: Sequence[Looked], at: datetime) -> None:
    """Write the page of these groups, over the one that is there. Raises `StoreUnavailableError`."""
    folder, name = settings.page_file()
    with folder.errors("written"):
        folder.make()
        folder.write(name, page(looked, settings.folder, at).encode())


def looks(settings: Settings) -> Iterator[Looked]:
    """What there is at each lease table. Raises as `LeaseTables.each` does."""
    for table, found in settings.each(_look):
        yield Looked(table, problem=str(found)) if isinstance(found, EhBalanceError) else found


def _look(table: LeaseTable, location: str) -> Looked:
    facts = gathered(table, location, None)
    return Looked(location, facts, explain(facts))


def rows_of(looked: Looked, at: datetime) -> Iterator[Mapping[str, Any]]:
    """The rows of one group in the run that began `at` that time; what is not known is missing."""
    base: dict[str, Any] = {"reportedAt": at, "leaseTable": looked.table}
    facts = looked.facts
    if facts is None:
        yield base | {"problem": looked.problem}
        return
    group = facts.snapshot.group
    base |= {"namespace": group.namespace, "eventHub": group.hub, "consumerGroup": group.consumer_group}
    base["liveMembers"] = sum(map(facts.live, facts.last_seen_ms))
    rows = [*_partitions(looked, facts)] or [{}]
    yield from (_short({**base, **row}) for row in rows)


def _short(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with its texts cut: others have written them, and each is in the rows of all partitions."""
    return {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in row.items()}


def _partitions(looked: Looked, facts: Facts) -> Iterator[Mapping[str, Any]]:
    for lease in facts.snapshot.leases.values():
        owner, lag, checkpoint = facts.snapshot.members.get(lease.owner or ""), lease.behind, lease.checkpoint
        state, reason = looked.state(lease.partition)
        yield {
            "partition": lease.partition,
            "state": state,
            "reason": reason,
            "owner": lease.owner,
            "ownerHost": owner and owner.host,
            "epoch": lease.epoch,
            "ownedSince": _time(lease.owned_since_ms if lease.owner else 0),
            "renewedAt": _time(lease.renewed_at_ms),
            "nextOwner": lease.handover and lease.handover.to,
            "pinnedTo": lease.pin and lease.pin.to,
            "sequenceNumber": checkpoint and checkpoint.sequence_number,
            "offset": checkpoint and checkpoint.offset,
            "end": lag and lag.end,
            "lagEvents": lag and lag.events,
            "lagSeconds": lag and lag.seconds(facts.now_ms),
            "lagMeasuredAt": lag and _time(lag.at_ms),
            "eventsPerSecond": lease.load and lease.load.rate,
        }


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, timezone.utc) if ms else None
