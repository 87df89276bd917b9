"""Transactions on a Delta table, run in the driver's JVM through py4j.

Rows are written by `WriteIntoDelta`, the class that Delta's own `df.write` uses, so all table features (partitions,
column mapping, constraints, generated and identity columns, clustering, ...) and all writer options work. Only the
transaction differs, because it also sets the marks. These classes are not public, so `exactly_once.support` checks that
they have the expected methods.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.conflicts import JVM_ERRORS, find_conflict, root_cause
from spark_ehbalance.exactly_once.java import delta_classes, java
from spark_ehbalance.exactly_once.local_lock import commit_lock
from spark_ehbalance.exactly_once.marks import LoggedCommit, Marks, SequenceRanges, TransactionCache, identity
from spark_ehbalance.exactly_once.protocol import FailedCommit
from spark_ehbalance.exactly_once.selection import select_rows

#: Maximum number of commits to read one by one. If there are more, reading the marks through Delta is cheaper.
_MAX_COMMITS = 100

#: The table property of a target that was written without marks; see `exactly_once.merging`.
MERGED = "ehbalance.writeOnce"

#: A transaction identifier with the same meaning, which survives CREATE OR REPLACE TABLE and RESTORE. If it is followed
#: by a slash and a source, the table contains merged events of that source.
MERGED_IDENTIFIER = "ehb-merged"

#: Prefix of all marks' names.
_MARK = "ehb/"

#: The Delta property that limits how long marks are kept, and its minimum value in milliseconds. Event Hubs retains
#: events for at most 90 days, so no event can be read again after its mark was removed.
_RETENTION, _MIN_RETENTION = "delta.setTransactionRetentionDuration", 90 * 24 * 3600 * 1000

#: Stored in place of a mark's last event by a writer that raised the mark without knowing that event.
_NO_EVENT = 0


class EventOffsets(Protocol):
    """The offsets of a batch's events in a hub whose offsets identify events."""

    #: The offset of each partition's last read event, if known.
    last: Mapping[str, str]

    def find_offset(self, partition: str, sequence_number: int) -> str | None:
        """The offset of an event; None if it is unknown or the event is older than the batch."""


class MergedError(Exception):
    """The target was written without marks; marks can no longer be trusted."""


def is_path(target: str) -> bool:
    """Whether `target` is a path or an address: catalog names have no slash."""
    return "/" in target or "\\" in target


def hub_identifier(source: str) -> str:
    """The transaction identifier under which the creation time of the hub of `source` is stored."""
    return f"ehb-created/{source}"


def check_name(target: str) -> None:
    """Raise `TargetError` unless `target` is either a path or a catalog name."""
    if "`" in target and is_path(target):
        problem, allowed = "it is neither a path nor a name", "a path, or a name in the catalog"
        raise TargetError("EHB_TARGET_CALL_INVALID", function=f"Target {target!r}", problem=problem, allowed=allowed)


class Target:
    """Successive transactions on the Delta table `name`. If `name` is a path without a table, the table is created.

    `source` names the marks. The hub's creation time (`created`, milliseconds since 1970) is stored to detect a
    recreated hub. With `events`, the last event before each mark is stored too, to detect the promotion of a
    geo-replica.
    """

    def __init__(
        self,
        df: DataFrame,
        name: str,
        source: str,
        options: Mapping[str, str],
        *,
        created: int | None = None,
        events: EventOffsets | None = None,
    ) -> None:
        """Raises `TargetError` if `name` is not a Delta table."""
        #: The marks known from earlier batches, if any.
        self.cache: TransactionCache | None = None
        self._java, self._delta = java(df.sparkSession._jvm), delta_classes(df.sparkSession._jvm)
        self._session = df.sparkSession
        self._spark = df._jdf.sparkSession()
        self._name = name
        self._source = source
        self._created = created
        self._events = events
        options = {"mergeSchema": "false", **options}  # otherwise the session's autoMerge setting would apply
        self._options = self._delta.options(self._java.map(options), self._spark.sessionState().conf())
        self._log, self._catalog = self._find(df)
        self._transaction: Any = None
        self._written: Any = None

    @property
    def location(self) -> str:
        """The table's location, which is the same for all names of the table."""
        return str(self._log.dataPath().toString())

    def check_own_sink(self, query: str, batch: int) -> None:
        """Raise `TargetError` if Delta's own sink, which stores the batch number under the query's id, wrote this or a
        later `batch`. The table may then contain events of this batch."""
        last = self._log.startTransaction(self._catalog, self._java.none).snapshot().transactions().get(query)
        if last.isEmpty() or last.get() < batch:
            return
        raise TargetError("EHB_TARGET_BATCH_EXISTS", target=self._name, batch=last.get())

    def sources(self) -> set[str]:
        """The sources whose events the table contains, whether written with marks or by MERGE. Forces Delta to compute
        the table's state."""
        names = self._log.startTransaction(self._catalog, self._java.none).snapshot().transactions().keysIterator()
        found = set()
        while names.hasNext():
            name = str(names.next())
            if name.startswith(_MARK):
                found.add(name.removeprefix(_MARK).rpartition("/")[0])
            elif name.startswith(f"{MERGED_IDENTIFIER}/"):
                found.add(name.removeprefix(f"{MERGED_IDENTIFIER}/"))
        return found

    # --- the steps of the protocol -----------------------------------------------------------------------------

    def begin(self, partitions: Iterable[str]) -> dict[str, int]:
        """Start a transaction on the newest version and return its marks.

        Raises `TargetError` if the table cannot be written, and `MergedError` if it is flagged as merged.
        """
        transaction = self._transaction = self._log.startTransaction(self._catalog, self._java.none)
        version, metadata = transaction.readVersion(), transaction.metadata()
        self._check(metadata)
        self._log.protocolWrite(transaction.protocol())
        names = {partition: self._identifier(partition) for partition in partitions}
        hub = self._hub_identifier
        last = [self._event_identifier(partition) for partition in names]
        cache = self._caught_up(metadata.id(), version) or TransactionCache(metadata.id(), version)
        read_versions = {
            name: transaction.txnVersion(name)
            for name in (*names.values(), *last, hub, MERGED_IDENTIFIER)
            if name not in cache.identifiers
        }
        self.cache = cache.with_identifiers({name: None if mark < 0 else mark for name, mark in read_versions.items()})
        if self._created is not None and self.cache.identifiers[hub] not in (None, self._created):
            raise TargetError("EHB_TARGET_HUB_RECREATED", target=self._name, source=self._source)
        marks = {partition: self.cache.identifiers[name] for partition, name in names.items()}
        found = {partition: mark for partition, mark in marks.items() if mark is not None}
        self._check_events(found)
        # Raised last, because MERGE relies on the sequence numbers, which the checks above verify.
        if metadata.configuration().contains(MERGED) or self.cache.identifiers[MERGED_IDENTIFIER] is not None:
            raise MergedError
        return found

    def write(self, df: DataFrame, read: SequenceRanges, events: SequenceRanges) -> None:
        """Write files with the rows of `df` whose events are in `events`, a subset of `read`."""
        rows = select_rows(df, read, events)
        command = self._delta.write(
            self._log,
            self._java.append,
            self._options,
            self._java.seq([]),
            self._java.map({}),
            rows._jdf,
            self._catalog,
            self._java.none,
            False,
        )
        self._written = command.writeAndReturnCommitData(self._transaction, self._spark, self._java.none, False)

    def commit(self, marks: Marks) -> FailedCommit | None:
        """Commit the files and `marks`. Returns the failure if the commit was rejected or its outcome is unknown."""
        assert self.cache is not None, "begun"
        names = {self._identifier(partition): mark for partition, mark in marks.items()}
        if self._created is not None and self.cache.identifiers[self._hub_identifier] is None:
            names[self._hub_identifier] = self._created
        if self._events is not None:
            last = {p: offset for p, offset in self._events.last.items() if p in marks}
            names |= {self._event_identifier(partition): identity(offset) for partition, offset in last.items()}
        known = {self._event_identifier(partition) for partition in marks}
        names |= {name: _NO_EVENT for name in known - names.keys() if self.cache.identifiers.get(name) is not None}
        jvm = self._java
        now = jvm.some(jvm.long(time.time_ns() // 1_000_000))
        set_marks = jvm.seq([self._delta.set_transaction(name, mark, now) for name, mark in names.items()])
        operation = self._delta.write_operation(
            jvm.append,
            jvm.some(jvm.seq([])),
            jvm.none,
            self._options.userMetadata(),
            *[jvm.none] * 5,
        )
        # Like `txnVersion`, but without computing the table's state: Delta rejects the commit if one of these was set
        # since the transaction began.
        self._transaction.readTxn().addAll(jvm.seq([*names, MERGED_IDENTIFIER]))
        actions, tags = self._written.actions().appendedAll(set_marks), self._written.stringTags()
        with commit_lock(self._session, self.location):
            try:
                version = self._transaction.commit(actions, operation, tags)
            except JVM_ERRORS as error:
                conflict = find_conflict(error)
                if conflict is None:
                    raise
                return FailedCommit(conflict, root_cause(error), error)
        if version == self.cache.version + 1:  # otherwise the next transaction reads the log
            self.cache = self.cache.after([LoggedCommit(version, names)])
            if version == 0:  # the first commit sets the table's id
                self.cache = replace(self.cache, table=str(self._transaction.metadata().id()))
        return None

    # --- inside ------------------------------------------------------------------------------------------------

    def _identifier(self, partition: str) -> str:
        return f"{_MARK}{self._source}/{partition}"

    def _event_identifier(self, partition: str) -> str:
        return f"ehb-event/{self._source}/{partition}"

    def _check_events(self, marks: Marks) -> None:
        """Raise `TargetError` if the hub's last event before a mark is not the one that the target contains."""
        assert self.cache is not None
        for partition, mark in marks.items():
            kept = self.cache.identifiers.get(self._event_identifier(partition))
            if kept in (None, _NO_EVENT) or self._events is None:
                continue
            offset = self._events.find_offset(partition, mark - 1)
            if offset is not None and identity(offset) != kept:
                facts = {"target": self._name, "partition": partition, "known": mark - 1, "source": self._source}
                raise TargetError("EHB_TARGET_AHEAD", **facts)

    @property
    def _hub_identifier(self) -> str:
        return hub_identifier(self._source)

    @property
    def knows_hub(self) -> bool:
        """Whether the table contains the hub's creation time. Call `begin` first."""
        return self.cache is not None and self.cache.identifiers.get(self._hub_identifier) is not None

    def _find(self, df: DataFrame) -> tuple[Any, Any]:
        """The table's Delta log, and its entry in the catalog."""
        if is_path(self._name):
            return self._delta.log.forTable(self._spark, self._java.path(self._name)), self._java.none
        if not df.sparkSession.catalog.tableExists(self._name):
            df.limit(0).write.format("delta").mode("ignore").saveAsTable(self._name)
        try:
            identifier = self._spark.sessionState().sqlParser().parseTableIdentifier(self._name)
            table = self._delta.table.apply(self._spark, identifier, "write_once")
            return table.deltaLog(), table.catalogTable()
        except CapturedException as error:
            reason = str(error).splitlines()[0]
            raise TargetError("EHB_TARGET_UNSUPPORTED", target=self._name, reason=reason) from error

    def _check(self, metadata: Any) -> None:
        properties = metadata.configuration()
        if properties.contains(_RETENTION):
            text = properties.apply(_RETENTION)
            configs = self._delta.configs
            if configs.getMilliSeconds(configs.parseCalendarInterval(text)) < _MIN_RETENTION:
                reason = f"{_RETENTION} is {text}, below the 90 days for which Event Hubs may retain an event"
                raise TargetError("EHB_TARGET_UNSUPPORTED", target=self._name, reason=reason)

    def _caught_up(self, table: str, version: int) -> TransactionCache | None:
        """The cache as of `version`; None if it is unusable or too old."""
        cache = self.cache
        if cache is None or cache.table != table or not 0 <= version - cache.version <= _MAX_COMMITS:
            return None
        if version == cache.version:
            return cache
        files = self._log.getChangeLogFiles(cache.version + 1, version, self._catalog, False)
        store, configuration, commits = self._log.store(), self._log.newDeltaHadoopConf(), []
        while files.hasNext():
            file = files.next()
            commits.append(LoggedCommit.parse(file._1(), store.read(file._2(), configuration).mkString("\n")))
        if [commit.version for commit in commits] != list(range(cache.version + 1, version + 1)):
            return None  # the log was cleaned up
        return cache.after(commits)
