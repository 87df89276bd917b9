"""Parses a stream of JSON events into a Delta table, and writes rejected events to another table. Both writes are
exactly-once.

Each table's log has its own marks (how far each partition has been written, see `exactly_once`). If the job dies
between the two writes, the batch is read again, by this query or by the next owner of its partitions, because it is
checkpointed only after both writes; the first write is then skipped.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.exactly_once import write_once
from spark_ehbalance.jobs.parsing import EVENT_COLUMNS, REASON, Parser
from spark_ehbalance.jobs.settings import (
    PREFIX,
    JobSettings,
    SettingError,
    hub,
    parse_location,
    parse_table,
    parse_trigger,
    required,
)
from spark_ehbalance.query.options import Options, stream_options
from spark_ehbalance.settings.option_texts import invalid_option


def _schema(text: str) -> str:
    path = text.removeprefix("file:")
    if path != text:
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe or a device may have no end
                raise ValueError("a regular file")
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"a file that the driver can read ({reason})") from None
    if not text:
        raise ValueError("a schema in DDL, or file:PATH if it is in a file")
    return text


def _source(options: Mapping[str, str]) -> Options:
    checked = stream_options(options)
    if checked.on_malformed == "keep":
        raise invalid_option("onMalformed", "keep", "fail or skip, because a malformed event has no fields")
    return checked


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The settings of `parse_to_delta`."""

    table: str = required(parse_table)
    rejected: str = required(parse_table)
    schema: str = required(_schema)
    checkpoint_location: str = required(parse_location)
    trigger: Mapping[str, Any] = required(parse_trigger)
    source: Mapping[str, str] = hub(_source)

    def __post_init__(self) -> None:
        one, other = (table.rstrip("/") + "/" for table in (self.table, self.rejected))
        if one.startswith(other) or other.startswith(one):
            raise SettingError(
                "EHB_OPTIONS_CONFLICT",
                options=f"{PREFIX}table={self.table} and {PREFIX}rejected={self.rejected}",
                reason="they are the same table, or one contains the other",
            )


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query. It applies `rows` to the parsed events, whose fields are in the struct `value`, and appends the
    result to the table. Rejected events are appended to their own table. Raises `SettingError` for an invalid
    schema."""
    parser = Parser(spark, settings.schema)

    def write(batch: DataFrame, number: int) -> None:
        parsed = parser.parse(batch).persist()  # so that both writes use the same read
        try:
            write_once(rows(parsed.where(f"{REASON} IS NULL")), number, settings.table)
            rejected = parsed.where(f"{REASON} IS NOT NULL")
            write_once(rejected.select(*EVENT_COLUMNS, "offset", "body", REASON), number, settings.rejected)
        finally:
            parsed.unpersist()

    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    writer = events.writeStream.option("checkpointLocation", settings.checkpoint_location)
    return writer.trigger(**settings.trigger).foreachBatch(write).start()
