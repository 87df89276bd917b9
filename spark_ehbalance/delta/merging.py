"""MERGE by partition and sequence number, through Spark's public interface alone, so that it works on Spark Connect.

It needs no marks, and sets none. So the target is marked as merged first (a table property), and every writer that
finds that merges too, however it could write: a transaction that is under way meanwhile is refused by Delta, because
the table's metadata has changed. Of two MERGEs at the same time Delta refuses one: what each has not found in the table
is what the other adds, and Delta counts that as read.

The events of two sources have the same numbers, so that a table can be merged with those of one only. The property
names it, once that is known: from the table's marks, or from the batch.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, MergeIntoWriter
from pyspark.sql import functions as F

from spark_ehbalance.delta.conflicts import JVM_ERRORS, cause_of, conflict_of
from spark_ehbalance.delta.local_lock import locked
from spark_ehbalance.delta.marks import Extent, Extents
from spark_ehbalance.delta.selection import PARTITION, SEQUENCE_NUMBER, check_columns
from spark_ehbalance.delta.support import Support, support
from spark_ehbalance.delta.target import MERGED, Target, check_name, is_path
from spark_ehbalance.errors import TargetError

#: Refused commits after which a MERGE fails. Unless the table is partitioned by `partition`, every append is a
#: conflict. If eight queries merge without a pause, so that one in eight attempts succeeds, all fail with (7/8)^100.
_MOST_REFUSED = 100

#: Ranges of sequence numbers in the condition of a MERGE: Spark takes long to parse many, and fails with thousands.
_MOST_RANGES = 64

#: The property's value as long as no source is known.
_UNKNOWN = "merge"

_BATCH = "ehbalance_batch"


def merge(df: DataFrame, target: str, *, update: bool = True) -> None:
    """Upsert rows into a Delta table, so that it holds one row for each event.

    For rows that are not a micro-batch of `write_once`: of a batch query, of a stream that does not read with this
    source itself, or of events that are processed anew. A row replaces the one that the table holds of its event, or,
    without `update`, is left out then. In `foreachBatch`: `lambda df, _: spark_ehbalance.merge(df, "events")`.

    An event is identified by the columns `partition` and `sequenceNumber`, which must be in `df`, with one row for each
    event. `target` is a path (with a slash) or a name in Spark's catalog; it is created if it does not exist. Columns
    that `df` lacks get their defaults.

    From then on `write_once` uses MERGE for this table too, which costs more (`docs/exactly-once.md`).

    Raises `TargetError` for a table or frame that cannot be merged so, for a table into which `write_once` has written
    several hubs or sources, and after many commits that were refused because others wrote at the same time; nothing is
    written then.
    """
    check_name(target)
    check_columns(df)
    _merged(df, target, None, update=update, one_row=True, schema=False)


def merge_once(df: DataFrame, target: str, source: str | None, options: Mapping[str, str]) -> None:
    """Insert those rows of `df`, of `source` if that is known, whose events the Delta table `target` does not hold yet.

    Raises as `merge` does, and if the table holds the events of another source. Without access to Delta's classes the
    table's sources are not known, so that no `source` is allowed then.
    """
    if source is not None and support(df) is Support.MERGING:
        raise _several(target, [source, "others"])
    if unknown := options.keys() - {"mergeSchema"}:
        raise TargetError(f"write_once merges here, and MERGE has no option {min(unknown)}: allowed is mergeSchema")
    schema = options.get("mergeSchema", "false").lower() == "true"
    _merged(df, target, source, update=False, one_row=False, schema=schema)


def _merged(df: DataFrame, target: str, source: str | None, *, update: bool, one_row: bool, schema: bool) -> None:
    is_cached = df.storageLevel != StorageLevel.NONE
    rows = df.persist()  # it is read several times, and must be the same each time
    try:
        extents = _extents(rows, one_row=one_row)
        table, location = _table(rows, target, source, marked=bool(extents))
        if not extents:
            return
        writer = into(table, rows, extents)
        if schema:
            writer = writer.withSchemaEvolution()
        # Not `insertAll`, which refuses a table with generated, identity or other columns that the rows lack.
        names = [f"`{name.replace('`', '``')}`" for name in rows.columns]
        columns = {name: F.col(f"{_BATCH}.{name}") for name in names}
        if update:
            writer = writer.whenMatched().update(columns)
        with locked(rows.sparkSession, location):
            _tried(writer.whenNotMatched().insert(columns).merge)
    finally:
        if not is_cached:
            rows.unpersist()


def _extents(rows: DataFrame, *, one_row: bool) -> dict[str, Extent]:
    """Where the events of `rows` lie. Raises `TargetError` for rows without an event, and with `one_row` for events
    with more than one."""
    number = F.col(SEQUENCE_NUMBER)
    counted = F.count_distinct(number) if one_row else F.count(number)
    found = rows.groupBy(PARTITION).agg(F.min(number), F.max(number), F.count(F.lit(1)), counted).collect()
    for partition, _, _, count, numbers in found:
        if partition is None or count != numbers:
            raise TargetError(
                f"partition {partition}: {count} rows have {numbers} sequence numbers, but every row needs both"
                + (", and an event one row: dropDuplicates(['partition', 'sequenceNumber'])" if one_row else "")
            )
    return {partition: Extent(first, last + 1) for partition, first, last, _, _ in found}


def into(table: str, rows: DataFrame, extents: Extents) -> MergeIntoWriter:
    """A MERGE of `rows`, whose events lie in `extents`, into `table`: what is the same event matches."""
    partition, number = F.col(f"{table}.{PARTITION}"), F.col(f"{table}.{SEQUENCE_NUMBER}")
    same = (partition == F.col(f"{_BATCH}.{PARTITION}")) & (number == F.col(f"{_BATCH}.{SEQUENCE_NUMBER}"))
    # What follows is already said, but lets Delta leave out files by their partitions and by their statistics.
    ordered = sorted(extents, key=lambda each: extents[each].start)
    size = -(-len(ordered) // _MOST_RANGES)
    ranges = [
        partition.isin(group)
        & number.between(min(extents[p].start for p in group), max(extents[p].end for p in group) - 1)
        for group in (ordered[first : first + size] for first in range(0, len(ordered), size))
    ]
    condition = same & partition.isin(ordered) & functools.reduce(operator.or_, ranges)
    return rows.alias(_BATCH).mergeInto(table, condition)


def _table(rows: DataFrame, target: str, source: str | None, *, marked: bool) -> tuple[str, str]:
    """The table's name in SQL, and its location. It is created if it is not there, and `marked` as merged."""
    spark, path = rows.sparkSession, is_path(target)
    name = f"delta.`{target}`" if path else target
    empty = rows.limit(0).write.format("delta").mode("ignore")
    try:
        if path:
            with locked(spark, target):
                _tried(lambda: empty.save(target))  # others may create it at this moment
        else:  # the catalog lets one create it
            _tried(lambda: empty.saveAsTable(target))
        detail = spark.sql(f"DESCRIBE DETAIL {name}").head()
    except AnalysisException as error:
        raise TargetError(f"target {target!r} cannot be merged into: {str(error).splitlines()[0]}") from error
    assert detail, "one row"
    if detail["format"] != "delta":
        raise TargetError(f"target {target!r} cannot be merged into: its format is {detail['format']}, not delta")
    found = detail["properties"].get(MERGED)
    if marked and (found is None or source not in (None, found)):
        with locked(spark, detail["location"]):
            _tried(lambda: _mark(rows, target, name, source))
    return name, detail["location"]


def _mark(rows: DataFrame, target: str, table: str, source: str | None) -> None:
    """Mark the `target`, whose name in SQL is `table`, as merged, with the source whose events it holds.

    Raises `TargetError` if there are several.
    """
    detail = rows.sparkSession.sql(f"DESCRIBE DETAIL {table}").head()
    assert detail, "one row"
    sources = {detail["properties"].get(MERGED, _UNKNOWN)} - {_UNKNOWN}
    if not sources and support(rows) is not Support.MERGING:
        sources = Target(rows, target, "", {}, None, remembers=False).sources()
    if source is not None:
        sources.add(source)
    if len(sources) > 1:
        raise _several(target, sorted(sources))
    value = min(sources, default=_UNKNOWN).replace("\\", "\\\\").replace("'", "\\'")
    # Databricks' default isolation level lets an append pass that a MERGE should have seen.
    properties = f"'{MERGED}' = '{value}', 'delta.isolationLevel' = 'Serializable'"
    rows.sparkSession.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")


def _several(target: str, sources: list[str]) -> TargetError:
    return TargetError(
        f"MERGE cannot write target {target!r} with more than one source ({' and '.join(sources)}): it knows an event "
        "by partition and sequence number alone, and would take those of one for those of the other. Give each hub, or "
        "source, a table of its own"
    )


def _tried(act: Callable[[], object]) -> None:
    """Do it again where another commit was in the way."""
    for attempt in range(1, _MOST_REFUSED + 1):
        try:
            act()
        except (*JVM_ERRORS, PySparkException) as error:
            if conflict_of(error) is None:
                raise
            if attempt == _MOST_REFUSED:
                raise TargetError(
                    f"the target has refused {attempt} commits of the batch, the last one because of {cause_of(error)}"
                ) from error
        else:
            return
