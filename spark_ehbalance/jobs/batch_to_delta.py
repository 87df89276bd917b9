"""Writes the events that a hub received in a time range to a Delta table. The table may already contain some of them,
and queries may write to it at the same time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pyspark.sql import DataFrame, SparkSession

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import resolve
from spark_ehbalance.exactly_once.merging import insert
from spark_ehbalance.group.starting_positions import parse_position
from spark_ehbalance.jobs.program import print_progress
from spark_ehbalance.jobs.settings import PREFIX, JobSettings, SettingError, hub, parse_table, required
from spark_ehbalance.query.batch_read import batch_ranges
from spark_ehbalance.query.options import Options, batch_options
from spark_ehbalance.settings.option_specs import option_field
from spark_ehbalance.settings.parsing import whole_number
from spark_ehbalance.settings.secrets import looks_secret


def _time(text: str) -> datetime:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(position := parse_position(text), datetime):
            return position.astimezone(timezone.utc)
    raise ValueError("a time such as 2026-01-31T12:00:00Z (UTC) or 2026-01-31T12:00:00+01:00, with a time zone")


def _name(text: str) -> str:
    if looks_secret(text):  # the table's log would contain it
        raise ValueError("a name without a key or a signature")
    return text


def _options(options: Mapping[str, str]) -> Options:
    for name in options:
        if name.lower().endswith(("startingposition", "endingposition")):
            raise OptionError(
                "EHB_OPTION_NOT_APPLICABLE", option=name, reason=f"{PREFIX}from and {PREFIX}to set the range"
            )
    return batch_options(options)


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The settings of `batch_to_delta`; the field `from_` is the setting `from`."""

    table: str = required(parse_table)
    from_: datetime = required(_time)
    to: datetime = required(_time)
    max_events_per_commit: int = option_field(1_000_000, whole_number(1))
    source_name: str | None = option_field(None, _name)
    source: Mapping[str, str] = hub(_options)

    def __post_init__(self) -> None:
        if self.from_ >= self.to:
            raise SettingError(
                "EHB_OPTIONS_CONFLICT",
                options=f"{PREFIX}from={_text(self.from_)} and {PREFIX}to={_text(self.to)}",
                reason="from must be before to",
            )


def split(ranges: Sequence[OffsetRange], max_events: int) -> list[dict[str, tuple[int, int]]]:
    """Split the `ranges` into parts of about `max_events` events. A part maps each partition to its first sequence
    number and its end (exclusive)."""
    count = -(-sum(span.end - span.start for span in ranges) // max_events)

    def cut(span: OffsetRange, part: int) -> int:
        return span.start + (span.end - span.start) * part // count

    return [{span.partition: (cut(span, n), cut(span, n + 1)) for span in ranges} for n in range(count)]


def copy(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> None:
    """Insert the `rows` of the events in the range that the table does not contain yet, and print the numbers of
    events.

    Raises `SettingError` if `to` is in the future.
    """
    if settings.to > datetime.now(timezone.utc):
        raise SettingError(
            "EHB_OPTION_INVALID",
            option=f"{PREFIX}to",
            value=_text(settings.to),
            allowed="a time in the past, because events enqueued later would be missing",
        )
    begin, end = _text(settings.from_), _text(settings.to)
    options = batch_options({**settings.source, "startingPosition": begin, "endingPosition": end})
    created = _check_retention(options, settings.from_)
    name = settings.source_name or options.connection.hub_name
    parts = split(batch_ranges(options), settings.max_events_per_commit)
    total_read = total_present = 0
    for number, part in enumerate(parts, 1):
        # Partitions outside the part start and end at `latest`, so nothing is read from them.
        ends = [json.dumps({**{p: {"next": cut[edge]} for p, cut in part.items()}, "*": "latest"}) for edge in (0, 1)]
        reader = spark.read.format("ehbalance").options(**settings.source)
        events = reader.options(startingPosition=ends[0], endingPosition=ends[1]).load()
        read, present = insert(rows(events), settings.table, name, created)
        total_read, total_present = total_read + read, total_present + present
        print_progress(f"part {number} of {len(parts)}: {_counts(read, present)}")
    print_progress(f"all from {begin} to {end}: {_counts(total_read, total_present)}")


def _check_retention(options: Options, begin: datetime) -> int | None:
    """Warn about partitions that may have lost events of the range: their first retained event is in the range, but is
    not the first event they ever received. Returns the hub's creation time in milliseconds since 1970."""
    trimmed = []
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        states = metadata.partition_states(metadata.partition_ids())
        for partition, state in states.items():
            address = PartitionAddress(options.connection, options.consumer_group, partition)
            if state.begin and resolve(begin, address, state, options.receiver_timeout).next == state.begin:
                trimmed.append(f"{partition} (from sequence number {state.begin})")
        if trimmed:
            print_progress(
                f"The hub no longer retains the beginning of the range in partitions {', '.join(trimmed)}: earlier "
                "events of the range, if any, are missing"
            )
        return metadata.created_ms


def _counts(read: int, present: int) -> str:
    return f"{read:,} read, {read - present:,} written, {present:,} already present"


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
