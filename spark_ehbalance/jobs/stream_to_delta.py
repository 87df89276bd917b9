"""A stream into a table: of Delta, exactly once, or of another format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.target import is_path
from spark_ehbalance.exactly_once.writing import OPTIONS
from spark_ehbalance.jobs.program import format_of
from spark_ehbalance.jobs.settings import (
    PREFIX,
    JobSettings,
    SettingError,
    group,
    hub,
    place,
    refuse_secret,
    required,
    table_name,
    trigger_of,
)
from spark_ehbalance.settings.declared import declared
from spark_ehbalance.settings.parsing import flag, whole
from spark_ehbalance.settings.secrets import shown

_SINK = PREFIX + "sink."

#: What `once` takes: the writer's options, and the name under which the table remembers what was written.
_ONCE = (*OPTIONS, "source")

#: Options of Spark's writer that are settings of the job, in lower case: Spark ignores the case.
_OWN = {"path": "table", "checkpointlocation": "checkpointLocation"}

#: Parsers, by name in lower case, of options that Delta checks only when the first batch is written.
_VALUES: Mapping[str, Callable[[str], object]] = {
    "mergeschema": flag,
    "optimizewrite": flag,
    "maxrecordsperfile": whole(0),
}

#: The formats that Spark writes with its file sink.
_FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})


def _format(text: str) -> str:
    if not re.fullmatch(r"\w{1,30}", text):
        raise ValueError("a format's short name, such as delta")
    return text


def _writer(prefix: str, options: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in options.items():
        refuse_secret(shown(prefix + name), value)
    return options


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The job's settings, checked."""

    table: str = required(table_name)
    format: str = declared("delta", _format)
    checkpoint_location: str = required(place)
    trigger: Mapping[str, Any] = required(trigger_of)
    exactly_once: bool | None = declared(None, flag)
    source: Mapping[str, str] = hub()
    sink: Mapping[str, str] = group(_writer)

    @property
    def once(self) -> bool:
        """Whether the table holds every event once: that of Delta, unless told otherwise."""
        return self.format.lower() == "delta" if self.exactly_once is None else self.exactly_once

    def __post_init__(self) -> None:
        for name, value in self.sink.items():
            if self.once and name not in _ONCE:
                raise SettingError(
                    f"there is no setting {shown(_SINK + name)}: a table that is written exactly once has "
                    + ", ".join(_SINK + option for option in _ONCE)
                )
            if own := _OWN.get(name.lower()):
                raise SettingError(f"{_SINK}{name} cannot be set: it is {PREFIX}{own}")
            try:
                _VALUES.get(name.lower(), str)(value)
            except ValueError as allowed:
                raise SettingError(f"{_SINK}{name}={shown(value)} is wrong: allowed is {allowed}") from None
        self.check_format(self.format)

    def check_format(self, format: str) -> None:
        """Raise `SettingError` if `format` cannot be written exactly once, or loses rows when queries share a hub."""
        if format.lower() in _FILE_FORMATS and any(name.lower() == "leasetable" for name in self.source):
            raise SettingError(
                f"{PREFIX}table={self.table} is of the format {format}, and {PREFIX}source.leaseTable is set: queries "
                "that write files into one folder lose rows in silence; use the format delta, or leave the lease table "
                "out"
            )
        if self.once and format.lower() != "delta":
            raise SettingError(
                f"{PREFIX}table={self.table} is of the format {format}, which cannot be written exactly once: "
                f"leave {PREFIX}format out, or set it and {PREFIX}exactlyOnce=false"
            )


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query that appends `rows`, made of the hub's events, to the table. Raises `SettingError` if it cannot
    be written."""
    if found := format_of(spark, settings.table):
        settings.check_format(found)
    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    writer = rows(events).writeStream.outputMode("append").trigger(**settings.trigger)
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    if settings.once:
        return writer.foreachBatch(once(settings.table, **settings.sink)).start()
    writer = writer.format(settings.format).options(**settings.sink)
    return writer.start(settings.table) if is_path(settings.table) else writer.toTable(settings.table)
