"""A stream of JSON into a Delta table of its fields, and what cannot be parsed into another, both exactly once.

Each table has marks of its own. If the job dies when one has a batch and the other not, the batch is read again, by
this query or by who takes its partitions, since nothing is checkpointed before both have it; the first leaves it out.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import OptionError
from spark_ehbalance.exactly_once import write_once
from spark_ehbalance.jobs.parsing import OF_EVENT, REASON, Parser
from spark_ehbalance.jobs.program import overlap
from spark_ehbalance.jobs.settings import (
    PREFIX,
    JobSettings,
    SettingError,
    hub,
    place,
    required,
    table_name,
    trigger_of,
)
from spark_ehbalance.query.options import Options, stream_options


def _schema(text: str) -> str:
    path = text.removeprefix("file:")
    if path != text:
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe, or a device, may have no end
                raise ValueError("a regular file, which this is not")
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise ValueError(f"a file that can be read where the driver runs ({why})") from None
    if not text:
        raise ValueError("a schema in DDL, or file:PATH of one")
    return text


def _source(options: Mapping[str, str]) -> Options:
    checked = stream_options(options)
    if checked.on_malformed == "keep":
        raise OptionError("option onMalformed='keep' is wrong: allowed is fail or skip: no field can be read of it")
    return checked


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The job's settings, checked."""

    table: str = required(table_name)
    rejected: str = required(table_name)
    schema: str = required(_schema)
    checkpoint_location: str = required(place)
    trigger: Mapping[str, Any] = required(trigger_of)
    source: Mapping[str, str] = hub(_source)

    def __post_init__(self) -> None:
        if overlap(self.table, self.rejected):
            raise SettingError(
                f"{PREFIX}rejected={self.rejected} is {PREFIX}table too, or one lies in the other: what is rejected "
                "needs a folder beside it"
            )


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query that appends `rows`, made of the events that could be parsed (their fields are in the struct
    `value`), to the table, and the others to the rejected one. Raises `SettingError` for a schema that cannot be."""
    parser = Parser(spark, settings.schema)

    def write(batch: DataFrame, number: int) -> None:
        parsed = parser.parse(batch).persist()  # read and parsed once for both
        try:
            write_once(rows(parsed.where(f"{REASON} IS NULL")), number, settings.table)
            rejected = parsed.where(f"{REASON} IS NOT NULL")
            write_once(rejected.select(*OF_EVENT, "offset", "body", REASON), number, settings.rejected)
        finally:
            parsed.unpersist()

    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    writer = events.writeStream.option("checkpointLocation", settings.checkpoint_location)
    return writer.trigger(**settings.trigger).foreachBatch(write).start()
