"""Write a batch exactly once. This module connects the micro-batch, the protocol and the target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.batch import MicroBatch
from spark_ehbalance.exactly_once.marks import SequenceRanges, TransactionCache, skipped
from spark_ehbalance.exactly_once.merging import merge_once
from spark_ehbalance.exactly_once.protocol import Begin, Commit, Confirm, Step, Write, WriteResult, write_exactly_once
from spark_ehbalance.exactly_once.selection import check_frame, foreign_row_error, select_rows
from spark_ehbalance.exactly_once.support import has_transactions
from spark_ehbalance.exactly_once.target import MergedError, Target, check_name
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Delta's writer options for an append, and those of them that are true or false.
OPTIONS = ("compression", "maxRecordsPerFile", "mergeSchema", "optimizeWrite", "userMetadata")
_SWITCHES = ("mergeSchema", "optimizeWrite")

#: Known marks by target location and source. Each cache is valid for its table id and version, so all queries in a
#: process can share it, but only after their first batch: while they were stopped, an older copy of the table may have
#: reached this version. The key is not the target's name, because sessions resolve names differently.
_caches: dict[tuple[str, str], TransactionCache] = {}

#: The number of the last written batch, by query run, target location and source.
_written: dict[tuple[str, str, str], int] = {}


class SourceBatch(Protocol):
    """The part of `MicroBatch` that this module uses."""

    @property
    def read(self) -> SequenceRanges: ...
    def lost(self) -> frozenset[str]: ...


def write_once(df: DataFrame, batch_id: int, target: str, *, source: str | None = None, **options: Any) -> None:
    """Append the rows of a micro-batch to a Delta table so that the table contains every event exactly once.

    Call it in `foreachBatch` with the batch's DataFrame and number. `target` is a path (with a slash) or a name in
    Spark's catalog; a missing table is created. `options` can be Delta's write options `compression`,
    `maxRecordsPerFile`, `mergeSchema`, `optimizeWrite` and `userMetadata`.

    Every row must keep `partition` and `sequenceNumber`, and an event must always produce the same rows. `source`
    identifies where the data comes from (by default, the namespace and event hub). If a batch writes a second
    DataFrame, give it a different `source`.

    Raises `TargetError` if the DataFrame cannot be written to the table. Delta's own errors are passed through. After
    any of these errors, the batch can be run again.
    """
    _write(df, batch_id, target, source, _checked(target, source, options))


def once(target: str, *, source: str | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that appends every batch to `target`, as `write_once` does.

    Raises `TargetError` if an argument is invalid.
    """
    strings = _checked(target, source, options)

    def write(df: DataFrame, batch_id: int) -> None:
        _write(df, batch_id, target, source, strings)

    return write


def _checked(target: str, source: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    check_name(target)
    if source == "":
        raise TargetError(
            "EHB_TARGET_CALL_INVALID", function="write_once", problem="source is empty", allowed="a name, or None"
        )
    return _strings(options)


def _strings(options: Mapping[str, Any]) -> dict[str, str]:
    """The options as strings, as Delta's writer expects them. Raises `TargetError` for an unknown option or value."""
    if unknown := sorted(options.keys() - {*OPTIONS}):
        problem = f"there is no option {unknown[0]}"
        raise TargetError("EHB_TARGET_CALL_INVALID", function="write_once", problem=problem, allowed=", ".join(OPTIONS))
    strings = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    for name, value in strings.items():
        if allowed := allowed_values(name, value):
            problem = f"{name} is {value!r}"
            raise TargetError("EHB_TARGET_CALL_INVALID", function="write_once", problem=problem, allowed=allowed)
    return strings


def allowed_values(name: str, value: str) -> str | None:
    """The allowed values of Delta's option `name`, unless `value` is one of them."""
    if name in _SWITCHES and value.lower() not in ("true", "false"):
        return "true or false"
    if name == "maxRecordsPerFile" and not re.fullmatch(r"-?\d+", value):
        return "a whole number"
    return None


def _write(df: DataFrame, batch_id: int, target: str, source: str | None, options: Mapping[str, str]) -> None:
    check_frame(df)
    if not has_transactions(df):
        merge_once(df, target, source, options)
        return
    batch = MicroBatch(df, batch_id)
    if not batch.read:
        if df.count():  # reads all rows, so that Spark updates its state
            raise foreign_row_error()
        return
    name = source or batch.hub
    table = Target(df, target, name, options, created=batch.created, events=batch if batch.last else None)
    key = (table.location, name)
    done = (batch.run, *key)
    table.cache = _caches.get(key) if done in _written else None
    if _written.get(done) == batch_id:
        raise TargetError("EHB_TARGET_BATCH_EXISTS", target=target, batch=batch_id)
    if done not in _written:
        table.check_own_sink(batch.query, batch_id)
    try:
        result = _run(df, batch, table)
    except MergedError:
        if table.cache is not None:
            _caches[key] = table.cache
        merge_once(select_rows(df, batch.read, batch.read), target, name, options)
        _written[done] = batch_id
        return
    if table.cache is not None:
        _caches[key] = table.cache
    if done in _written:  # otherwise the batch may be a replay
        _warn_of_written_events(batch_id, batch.read, result)
    _written[done] = batch_id
    if result.lost:
        lost = ", ".join(result.lost)
        _LOG.info(
            "partitions were lost while being read; their new owners will write the events. batch=%d partitions=%s",
            batch_id,
            lost,
        )


def _run(df: DataFrame, batch: MicroBatch, target: Target) -> WriteResult:
    """Carry out the steps of the protocol."""
    steps, answer = write_exactly_once(batch.read), None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: WriteResult = end.value
            return result
        answer = carry_out(step, df, batch, target)


def carry_out(step: Step, df: DataFrame, batch: SourceBatch, target: Target) -> Any:
    """Carry out one step of the protocol, and return the answer."""
    match step:
        case Begin(partitions):
            marks = target.begin(partitions)
            _warn_of_gaps(batch.read, marks)
            return marks
        case Write(events):
            return target.write(df, batch.read, events)
        case Confirm(partitions):
            return batch.lost() & {*partitions}
        case Commit(marks):
            return target.commit(marks)


def _warn_of_written_events(batch_id: int, read: SequenceRanges, result: WriteResult) -> None:
    if there := [p for p, range_ in read.items() if p not in result.lost and result.written.get(p) != range_]:
        _LOG.warning(
            "the target already contains events of the batch, from another query or from before a seek; they are not "
            "written again. This is expected after a query died or lost a partition. A query that derives other rows "
            "from the same events, or reads skipped events, needs its own `source`. batch=%d partitions=%s",
            batch_id, ", ".join(there),
        )  # fmt: skip


def _warn_of_gaps(read: SequenceRanges, marks: dict[str, int]) -> None:
    for partition, range_ in skipped(read, marks).items():
        _LOG.warning(
            "events between the target's last event and this batch were not written exactly once: they aged out, were "
            "skipped, or were written in another way. If the target was restored from an older copy, or the lease "
            'table was recreated, they may be missing: see "If something fails" in docs/exactly-once.md. '
            "partition=%s from=%d to=%d",
            partition, range_.start, range_.end - 1,
        )  # fmt: skip
