"""A time range of a hub into a Delta table that may hold some of it, or be filled by queries at the same time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.exactly_once.merging import insert
from spark_ehbalance.group.starting_positions import parse_position
from spark_ehbalance.jobs.program import say
from spark_ehbalance.jobs.settings import PREFIX, JobSettings, SettingError, hub, required, table_name
from spark_ehbalance.query.batch_read import batch_ranges
from spark_ehbalance.query.options import Options, batch_options
from spark_ehbalance.settings.declared import declared
from spark_ehbalance.settings.parsing import whole
from spark_ehbalance.settings.secrets import looks_secret


def _time(text: str) -> datetime:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(position := parse_position(text), datetime):
            return position.astimezone(timezone.utc)
    raise ValueError("a time such as 2026-01-31T12:00:00Z (UTC) or 2026-01-31T12:00:00+01:00, with its zone")


def _name(text: str) -> str:
    if looks_secret(text):  # the table's log would keep it
        raise OptionError("it holds what looks like a key or a signed address, for all to see")
    return text


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
    max_events_per_commit: int = declared(1_000_000, whole(1))
    source_name: str | None = declared(None, _name)
    source: Mapping[str, str] = hub(_options)

    def __post_init__(self) -> None:
        if self.from_ >= self.to:
            raise SettingError(
                f"{PREFIX}from={_text(self.from_)} is not before {PREFIX}to={_text(self.to)}, at which reading ends "
                "(exclusive)"
            )


def parts(ranges: Sequence[Range], most: int) -> list[dict[str, tuple[int, int]]]:
    """The `ranges` in parts of about `most` events: partition → first sequence number, and the one after the last."""
    count = -(-sum(each.end - each.start for each in ranges) // most)

    def cut(each: Range, part: int) -> int:
        return each.start + (each.end - each.start) * part // count

    return [{each.partition: (cut(each, n), cut(each, n + 1)) for each in ranges} for n in range(count)]


def copy(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> None:
    """Insert those `rows`, made of the events of the range, that the table does not hold yet, and say how many.

    Raises `SettingError` for an end that is yet to come.
    """
    if settings.to > datetime.now(timezone.utc):
        raise SettingError(
            f"{PREFIX}to={_text(settings.to)} is yet to come: the events that are enqueued until then would be missing"
        )
    begin, end = _text(settings.from_), _text(settings.to)
    options = batch_options({**settings.source, "startingPosition": begin, "endingPosition": end})
    created = _look(options, settings.from_)
    name = settings.source_name or options.connection.hub_name
    done = parts(batch_ranges(options), settings.max_events_per_commit)
    all_read = all_there = 0
    for number, part in enumerate(done, 1):
        # None of a partition that is not named: both ends are the same then.
        ends = [json.dumps({**{p: {"next": each[edge]} for p, each in part.items()}, "*": "latest"}) for edge in (0, 1)]
        reader = spark.read.format("ehbalance").options(**settings.source)
        events = reader.options(startingPosition=ends[0], endingPosition=ends[1]).load()
        read, there = insert(rows(events), settings.table, name, created)
        all_read, all_there = all_read + read, all_there + there
        say(f"part {number} of {len(done)}: {_counted(read, there)}")
    say(f"all from {begin} to {end}: {_counted(all_read, all_there)}")


def _look(options: Options, begin: datetime) -> int | None:
    """When the hub was created. Says in which partitions what the range begins with may be gone: in those whose first
    retained event is not the first that they had, and in the range."""
    gone = []
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        states = metadata.partition_states(metadata.partition_ids())
        for partition, state in states.items():
            address = PartitionAddress(options.connection, options.consumer_group, partition)
            if state.begin and resolve(begin, address, state, options.receiver_timeout).next == state.begin:
                gone.append(f"{partition} (from number {state.begin} on)")
        if gone:
            say(
                f"The range begins before what the hub retains of partitions {', '.join(gone)}: events that they had "
                "before that in the range, if any, are missing"
            )
        return metadata.created_ms


def _counted(read: int, there: int) -> str:
    return f"{read:,} read, {read - there:,} written, {there:,} there already"


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
