"""The filter that selects the rows to write. Spark evaluates it together with the batch's other operations.

Partitions of an event hub are numbered from 0, so the filter looks up bounds in arrays, at a cost that does not grow
with the number of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.marks import SequenceRanges

PARTITION, SEQUENCE_NUMBER = "partition", "sequenceNumber"

#: Session settings that make Delta skip a write whose `txnVersion` the table already contains. With them, Delta would
#: skip all commits except the first.
_SKIPPING = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


def foreign_row_error() -> TargetError:
    """The error for a row whose event the batch does not read."""
    problem = "A row has no partition or sequence number, or they identify an event that the batch does not read"
    return TargetError("EHB_TARGET_ROWS_INVALID", problem=problem)


def check_frame(df: DataFrame) -> None:
    """Raise `TargetError` if `df` lacks the columns that identify an event, if those columns have other types, or if
    the session of `df` makes Delta skip writes."""
    for setting in _SKIPPING:
        if df.sparkSession.conf.get(setting, None) is not None:
            raise TargetError("EHB_SESSION_SKIPS_WRITES", setting=setting)
    types = {field.name.lower(): field.dataType.simpleString() for field in df.schema.fields}
    for column, wanted in ((PARTITION, "string"), (SEQUENCE_NUMBER, "bigint")):
        found = types.get(column.lower())
        if found != wanted:
            problem = f"its column {column} is {found}" if found else f"it has no column {column}"
            allowed = f"{column} {wanted}, because it identifies an event"
            raise TargetError("EHB_TARGET_CALL_INVALID", function="The frame", problem=problem, allowed=allowed)


def select_rows(df: DataFrame, read: SequenceRanges, events: SequenceRanges) -> DataFrame:
    """The rows of `df` whose events are in `events`, a subset of `read`. Evaluating the result fails on a row whose
    event is not in `read`. Raises `TargetError` for a partition that is not a number."""
    numbers = {partition: _number(partition) for partition in read}
    length = 1 + max(numbers.values())

    def lookup(values: Mapping[str, int]) -> str:
        by_number = {numbers[partition]: value for partition, value in values.items()}
        texts = ",".join(str(by_number.get(number, "")) for number in range(length))
        # Spark computes this constant once; a list of literals would take longer to parse.
        return f"get(try_cast(split('{texts}', ',') AS array<bigint>), try_cast({PARTITION} AS int))"

    starts, ends = lookup({p: e.start for p, e in read.items()}), lookup({p: e.end for p, e in read.items()})
    wanted = lookup({p: events[p].start if p in events else range_.end for p, range_ in read.items()})
    return df.filter(
        f"CASE WHEN {SEQUENCE_NUMBER} >= {starts} AND {SEQUENCE_NUMBER} < {ends} THEN {SEQUENCE_NUMBER} >= {wanted} "
        f"ELSE cast(raise_error('{foreign_row_error()}') AS boolean) END"
    )


def _number(partition: str) -> int:
    if not (partition.isascii() and partition.isdigit() and str(int(partition)) == partition):
        raise TargetError("EHB_TARGET_ROWS_INVALID", problem=f"Partition {partition!r} is not a number")
    return int(partition)
