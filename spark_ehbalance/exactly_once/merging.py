"""MERGE by partition and sequence number. It uses only Spark's public API, so it works on Spark Connect.

MERGE neither needs nor sets marks. So the target is first flagged as merged, with a table property and, in case the
property is lost, with a transaction identifier. From then on, every writer uses MERGE. Delta rejects transactions that
were in progress, because the table's metadata has changed. Of two concurrent MERGEs, Delta rejects one, because each
has read the part of the table to which the other adds rows.

Events of two sources can have the same sequence numbers, so only the events of one source can be merged into a table.
The property contains the source's name as soon as the table's marks or a batch reveal it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, MergeIntoWriter, Row
from pyspark.sql import functions as F

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.conflicts import JVM_ERRORS, find_conflict, root_cause
from spark_ehbalance.exactly_once.local_lock import commit_lock
from spark_ehbalance.exactly_once.marks import SequenceRange, SequenceRanges, missing
from spark_ehbalance.exactly_once.schemas import SchemaMatcher
from spark_ehbalance.exactly_once.selection import PARTITION, SEQUENCE_NUMBER, check_frame
from spark_ehbalance.exactly_once.support import has_transactions
from spark_ehbalance.exactly_once.target import (
    MERGED,
    MERGED_IDENTIFIER,
    MergedError,
    Target,
    check_name,
    hub_identifier,
    is_path,
)
from spark_ehbalance.settings.locations import is_relative

#: Number of rejected commits after which a MERGE fails. Unless the table is partitioned by `partition`, every append
#: conflicts. If eight queries merge without a pause, one in eight attempts succeeds, so the probability that all 100
#: attempts of a MERGE fail is (7/8)^100.
_MAX_FAILED_COMMITS = 100

#: Maximum number of sequence ranges in the condition of a MERGE. Spark parses many ranges slowly, and fails on
#: thousands of them.
_MAX_RANGES = 64

#: The property's value while the source is unknown.
_UNKNOWN = "merge"

_BATCH = "ehbalance_batch"


def merge(df: DataFrame, target: str, *, update: bool = True) -> None:
    """Upsert rows into a Delta table so that the table contains one row per event.

    A row replaces the table's row for the same event; with `update=False`, the table's row stays. `df` must have
    `partition` and `sequenceNumber`, which identify an event, and one row per event. In new rows, columns that `df`
    lacks get their defaults; the others must have the table's types. For `target`, see `write_once`. After `merge` has
    been called on a table, `write_once` also uses MERGE for that table, which is slower.

    Raises `TargetError` and writes nothing if `df` cannot be merged into the table. This happens if `write_once` has
    written events from several hubs or sources to the table, or if `update=True` and the table contains an event twice.
    """
    check_name(target)
    check_frame(df)
    _merged(df, target, None, update=update, one_row=True, schema=False)


def merge_once(df: DataFrame, target: str, source: str | None, options: Mapping[str, str]) -> None:
    """Insert the rows of `df` whose events are missing from the Delta table `target`. `source` is the source of the
    events, if known.

    Raises the same errors as `merge`, and `TargetError` if the table contains events of another source. Without access
    to Delta's classes, the table's sources are unknown, so `source` must then be None.
    """
    if source is not None and not has_transactions(df):
        raise _several(target, [source, "others"])
    if unknown := options.keys() - {"mergeSchema"}:
        problem = f"it uses MERGE for this table, and MERGE has no option {min(unknown)}"
        raise TargetError("EHB_TARGET_CALL_INVALID", function="write_once", problem=problem, allowed="mergeSchema")
    schema = options.get("mergeSchema", "false").lower() == "true"
    _merged(df, target, source, update=False, one_row=False, schema=schema)


def insert(df: DataFrame, target: str, source: str, created: int | None) -> tuple[int, int]:
    """Insert the rows of a batch query `df` whose events are missing from the Delta table `target`. Returns the number
    of rows in `df`, and the number of rows whose events the table already contained.

    `source` is the name under which `write_once` stores the hub's marks, and `created` is the hub's creation time
    (milliseconds since 1970) if known. If all events are before the marks, no query will write them again, so the table
    is not flagged as merged. Otherwise `write_once` uses MERGE for the table from then on, as after `merge`.

    Raises the same errors as `merge`, and `TargetError` if the table contains events of another source, or of an
    earlier hub with the same name.
    """
    check_name(target)
    check_frame(df)
    hub = _Hub(source if has_transactions(df) else None, created)
    return _merged(df, target, hub.source, update=False, one_row=False, schema=False, hub=hub)


class _Hub(NamedTuple):
    """The hub of a batch. The fields are as in `insert`; `source` is None if the target's marks cannot be read."""

    source: str | None
    created: int | None

    def known(self, rows: DataFrame, target: str, extents: SequenceRanges) -> tuple[bool, bool]:
        """Whether the `target` contains the hub's creation time, and whether all its marks are past the events, so that
        `write_once` will never write those events. Raises `TargetError` if the marks belong to an earlier hub with the
        same name."""
        if self.source is None:
            return True, False
        table = Target(rows, target, self.source, {}, created=self.created)
        try:
            has_passed = not missing(extents, table.begin(extents))
        except MergedError:
            has_passed = False
        return self.created is None or table.knows_hub, has_passed


def _merged(
    df: DataFrame,
    target: str,
    source: str | None,
    *,
    update: bool,
    one_row: bool,
    schema: bool,
    hub: _Hub | None = None,
) -> tuple[int, int]:
    """Merge `df`, and return the counts that `insert` returns (0 without `hub`)."""
    held = 0
    is_cached = df.storageLevel != StorageLevel.NONE
    rows = df.persist()  # several reads must return the same rows
    try:
        extents = _extents(rows, one_row=one_row)
        table, location = _table(rows, target)
        if not extents:
            return 0, 0

        def act() -> None:  # called again after each conflict, because the table may have changed
            nonlocal held
            fitting = _fitting(rows, target, table, evolves=schema)
            found = _detail(rows, table)["properties"].get(MERGED)
            marked = found is not None and source in (None, found)
            sources = set() if marked else _sources(rows, target, {found or _UNKNOWN, source or _UNKNOWN})
            is_noted, has_passed = hub.known(rows, target, extents) if hub else (True, False)
            if hub and not is_noted:
                _note(fitting, target, hub_identifier(hub.source or ""), hub.created or 0, evolves=schema)
            if update:
                _check_single(fitting, target, table, extents)
            if hub:
                held = rows.join(_events(rows, table, extents), [PARTITION, SEQUENCE_NUMBER], "left_semi").count()
            if not marked and not has_passed:
                _mark(fitting, target, table, sources, evolves=schema)
            writer = merge_writer(table, fitting, extents)
            if schema:
                writer = writer.withSchemaEvolution()
            # Not `insertAll`, which rejects tables with generated, identity or other columns that the rows lack.
            names = [f"`{name.replace('`', '``')}`" for name in fitting.columns]
            columns = {name: F.col(f"{_BATCH}.{name}") for name in names}
            if update:
                writer = writer.whenMatched().update(columns)
            writer.whenNotMatched().insert(columns).merge()

        with commit_lock(rows.sparkSession, location):
            _retry(act)
        return rows.count() if hub else 0, held
    finally:
        if not is_cached:
            rows.unpersist()


def _fitting(rows: DataFrame, target: str, table: str, *, evolves: bool) -> DataFrame:
    """`rows` with the types and nested fields of `table`, as an append would write them."""
    return rows.to(
        SchemaMatcher(target, evolves=evolves).schema(
            rows.schema, rows.sparkSession.sql(f"SELECT * FROM {table}").schema
        )
    )


def _check_single(rows: DataFrame, target: str, table: str, extents: SequenceRanges) -> None:
    """Raise `TargetError` if the table contains an event of `rows` twice, because an update would make both rows
    identical."""
    events = [PARTITION, SEQUENCE_NUMBER]
    twice = (
        _events(rows, table, extents)
        .join(rows.select(events), events, "left_semi")
        .groupBy(events)
        .count()
        .where("count > 1")
    )
    found = twice.orderBy(F.col(PARTITION).try_cast("int"), PARTITION, SEQUENCE_NUMBER).head()
    if found is not None:
        problem = (
            f"Target {target!r} contains partition {found[PARTITION]}, sequence number {found[SEQUENCE_NUMBER]} "
            f"{found['count']} times, and an update would make these rows identical"
        )
        raise TargetError("EHB_TARGET_ROWS_INVALID", problem=problem)


def _events(rows: DataFrame, table: str, extents: SequenceRanges) -> DataFrame:
    """The partition and sequence number of each table row that lies in `extents`."""
    return rows.sparkSession.sql(f"SELECT {PARTITION}, {SEQUENCE_NUMBER} FROM {table}").where(_within(extents))


def _extents(rows: DataFrame, *, one_row: bool) -> dict[str, SequenceRange]:
    """The sequence ranges that contain the events of `rows`. Raises `TargetError` for rows without an event and, with
    `one_row`, for events with several rows."""
    number = F.col(SEQUENCE_NUMBER)
    counted = F.count_distinct(number) if one_row else F.count(number)
    found = rows.groupBy(PARTITION).agg(F.min(number), F.max(number), F.count(F.lit(1)), counted).collect()
    for partition, _, _, count, numbers in found:
        if partition is None or count != numbers:
            kind = "distinct sequence numbers" if one_row else "sequence numbers"
            problem = f"Partition {partition}: {count} rows have only {numbers} {kind}"
            if partition is None:
                problem = f"{count} rows have no partition"
            raise TargetError("EHB_TARGET_ROWS_INVALID", problem=problem)
    return {partition: SequenceRange(first, last + 1) for partition, first, last, _, _ in found}


def merge_writer(table: str, rows: DataFrame, extents: SequenceRanges) -> MergeIntoWriter:
    """A MERGE of `rows` into `table` by event. The events of `rows` lie in `extents`."""
    partition, number = F.col(f"{table}.{PARTITION}"), F.col(f"{table}.{SEQUENCE_NUMBER}")
    same = (partition == F.col(f"{_BATCH}.{PARTITION}")) & (number == F.col(f"{_BATCH}.{SEQUENCE_NUMBER}"))
    return rows.alias(_BATCH).mergeInto(table, same & _within(extents, f"{table}."))


def _within(extents: SequenceRanges, prefix: str = "") -> Column:
    """Condition for events in `extents`. It lets Delta skip files by partition and statistics."""
    partition, number = F.col(f"{prefix}{PARTITION}"), F.col(f"{prefix}{SEQUENCE_NUMBER}")
    ordered = sorted(extents, key=lambda partition: extents[partition].start)
    size = -(-len(ordered) // _MAX_RANGES)
    ranges = [
        partition.isin(group)
        & number.between(min(extents[p].start for p in group), max(extents[p].end for p in group) - 1)
        for group in (ordered[first : first + size] for first in range(0, len(ordered), size))
    ]
    return partition.isin(ordered) & functools.reduce(operator.or_, ranges)


def _table(rows: DataFrame, target: str) -> tuple[str, str]:
    """The table's name in SQL, and its location. Creates the table if it does not exist."""
    spark, path = rows.sparkSession, is_path(target)
    jvm: Any = getattr(spark, "_jvm", None)
    # In SQL, Delta needs absolute paths. A Spark Connect server resolves relative paths itself.
    whole = jvm.java.io.File(target).getAbsolutePath() if path and jvm is not None and is_relative(target) else target
    name = f"delta.`{whole}`" if path else target
    empty = rows.limit(0).write.format("delta").mode("ignore")
    try:
        if path:
            with commit_lock(spark, target):
                _retry(lambda: empty.save(target))  # other queries may create it concurrently
        else:  # the catalog lets only one query create it
            _retry(lambda: empty.saveAsTable(target))
        detail = _detail(rows, name)
    except AnalysisException as error:
        raise TargetError("EHB_TARGET_UNSUPPORTED", target=target, reason=str(error).splitlines()[0]) from error
    if detail["format"] != "delta":
        reason = f"its format is {detail['format']}, not delta"
        raise TargetError("EHB_TARGET_UNSUPPORTED", target=target, reason=reason)
    return name, detail["location"]


def _detail(rows: DataFrame, table: str) -> Row:
    detail = rows.sparkSession.sql(f"DESCRIBE DETAIL {table}").head()
    assert detail, "DESCRIBE DETAIL returned no row"
    return detail


def _sources(rows: DataFrame, target: str, known: set[str]) -> set[str]:
    """The single source of the target's events, from `known` and the target's log; empty if unknown. Raises
    `TargetError` if there are several sources."""
    sources = known - {_UNKNOWN}
    if has_transactions(rows):
        sources |= Target(rows, target, "", {}).sources()
    if len(sources) > 1:
        raise _several(target, sorted(sources))
    return sources


def _mark(rows: DataFrame, target: str, table: str, sources: set[str], *, evolves: bool) -> None:
    """Flag the `target` (`table` in SQL) as merged, with the source in `sources`."""
    # The identifiers are set before the property, because the property implies them.
    for identifier in (MERGED_IDENTIFIER, *(f"{MERGED_IDENTIFIER}/{source}" for source in sources)):
        _note(rows, target, identifier, 1, evolves=evolves)
    value = min(sources, default=_UNKNOWN).replace("\\", "\\\\").replace("'", "\\'")
    # Databricks' default isolation level would accept a MERGE although concurrent appends added rows that the MERGE
    # should have read.
    settings = f"'{MERGED}' = '{value}', 'delta.isolationLevel' = 'Serializable'"
    rows.sparkSession.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({settings})")


def _note(rows: DataFrame, target: str, identifier: str, version: int, *, evolves: bool) -> None:
    """Set a transaction identifier of the `target`."""
    empty = rows.limit(0).write.format("delta").mode("append").option("mergeSchema", evolves)
    empty = empty.options(
        txnAppId=identifier, txnVersion=version
    )  # Delta skips the commit if the identifier is already set
    empty.save(target) if is_path(target) else empty.saveAsTable(target)


def _several(target: str, sources: list[str]) -> TargetError:
    reason = f"MERGE cannot distinguish the events of different sources, and the sources are {' and '.join(sources)}"
    return TargetError("EHB_TARGET_UNSUPPORTED", target=target, reason=reason)


def _retry(act: Callable[[], object]) -> None:
    """Run `act`, and run it again after each conflict with another commit."""
    for attempt in range(1, _MAX_FAILED_COMMITS + 1):
        try:
            act()
        except (*JVM_ERRORS, PySparkException) as error:
            if find_conflict(error) is None:
                raise
            if attempt == _MAX_FAILED_COMMITS:
                raise TargetError("EHB_TARGET_CONTENDED", count=attempt, reason=root_cause(error)) from error
        else:
            return
