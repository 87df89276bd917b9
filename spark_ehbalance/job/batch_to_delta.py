"""A time range of a hub into a Delta table that may hold some of it, or be filled by queries at the same time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.delta.merging import insert
from spark_ehbalance.errors import OptionError
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from spark_ehbalance.hub.receiver import PartitionAddress
from spark_ehbalance.hub.resolve import resolve
from spark_ehbalance.job.hub import hub
from spark_ehbalance.job.program import say
from spark_ehbalance.job.settings import PREFIX, JobSettings, SettingError, required, table_name
from spark_ehbalance.job.tables import check_delta
from spark_ehbalance.source.options import Options, batch_options
from spark_ehbalance.values.declared import declared
from spark_ehbalance.values.parsing import parse_duration
from spark_ehbalance.values.starting_positions import parse_position


def _time(text: str) -> datetime:
    with contextlib.suppress(ValueError):
        if isinstance(position := parse_position(text), datetime):
            return position.astimezone(timezone.utc)
    raise ValueError("a time such as 2026-01-31T12:00:00Z (UTC, if it names no zone)")


def _options(options: Mapping[str, str]) -> Options:
    if own := [name for name in options if name.lower().endswith(("startingposition", "endingposition"))]:
        raise OptionError(f"option {own[0]} cannot be set: {PREFIX}from and {PREFIX}to say what is read")
    return batch_options(options)


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The job's settings, checked. `from_` is the setting `from`."""

    table: str = required(table_name)
    from_: datetime = required(_time)
    to: datetime = required(_time)
    step: float = declared(3600.0, parse_duration)
    source_name: str | None = declared(None, str)
    source: Mapping[str, str] = hub(_options)

    def __post_init__(self) -> None:
        if self.from_ >= self.to:
            raise SettingError(
                f"{PREFIX}from={_text(self.from_)} is not before {PREFIX}to={_text(self.to)}, at which reading ends "
                "(exclusive)"
            )

    def steps(self) -> Iterator[tuple[datetime, datetime]]:
        """The parts of the range, each a transaction of its own."""
        begin = self.from_
        while begin < self.to:
            end = min(begin + timedelta(seconds=self.step), self.to)
            yield begin, end
            begin = end


def copy(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> None:
    """Insert those `rows`, made of the events of the range, that the table does not hold yet, and say how many.

    Raises `SettingError` for a table that is none of Delta, and for an end that is yet to come.
    """
    check_delta(spark, settings.table)
    if settings.to > datetime.now(timezone.utc):
        raise SettingError(
            f"{PREFIX}to={_text(settings.to)} is yet to come: the events that are enqueued until then would be missing"
        )
    options = _options(settings.source)
    created, starts = _look(options, settings.from_)
    name = settings.source_name or options.connection.hub_name
    all_read = all_there = 0
    for begin, end in settings.steps():
        positions = {"startingPosition": json.dumps({"*": _text(begin), **starts}), "endingPosition": _text(end)}
        if end < settings.to:  # found before this part is read, so that reading notices what ages out meanwhile
            with HubMetadata(options.connection, options.consumer_group) as metadata:
                starts = _numbers(options, end, metadata.partition_states(metadata.partition_ids()))
        events = spark.read.format("ehbalance").options(**settings.source, **positions).load()
        read, there = insert(rows(events), settings.table, name, created)
        all_read, all_there = all_read + read, all_there + there
        say(f"{_text(begin)} to {_text(end)}: {_counted(read, there)}")
    say(f"all from {_text(settings.from_)} to {_text(settings.to)}: {_counted(all_read, all_there)}")


def _look(options: Options, begin: datetime) -> tuple[int | None, dict[str, int]]:
    """When the hub was created, and `_numbers`. Says in which partitions what the range begins with may be gone: in
    those whose first retained event is not the first that they had, and in the range."""
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        states = metadata.partition_states(metadata.partition_ids())
        numbers = _numbers(options, begin, states)
        gone = [f"{p} (from number {state.begin} on)" for p, state in states.items() if 0 < state.begin == numbers[p]]
        if gone:
            say(
                f"The range begins before what the hub retains of partitions {', '.join(gone)}: events that they had "
                "before that in the range, if any, are missing"
            )
        return metadata.created_ms, numbers


def _numbers(options: Options, at: datetime, states: Mapping[str, PartitionState]) -> dict[str, int]:
    """The sequence number of the first event at or after that time in each partition with one of these `states`."""
    return {
        partition: resolve(
            at, PartitionAddress(options.connection, options.consumer_group, partition), state, options.receiver_timeout
        ).next
        for partition, state in states.items()
    }


def _counted(read: int, there: int) -> str:
    return f"{read:,} read, {read - there:,} written, {there:,} there already"


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
