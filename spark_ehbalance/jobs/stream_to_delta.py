"""Writes a stream to a Delta table, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.writing import OPTIONS, allowed_values
from spark_ehbalance.jobs.settings import (
    JobSettings,
    SettingError,
    group,
    hub,
    parse_location,
    parse_table,
    parse_trigger,
    reject_secret,
    required,
    unknown_setting,
)
from spark_ehbalance.settings.secrets import redacted

#: The allowed parameters of `once`: the writer's options, and the name of the source in the table's marks.
_ONCE = (*OPTIONS, "source")


def _writer(prefix: str, options: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in options.items():
        reject_secret(redacted(prefix + name), value)
        if name not in _ONCE:
            raise unknown_setting(prefix + name, [prefix + option for option in _ONCE])
        if allowed := allowed_values(name, value) if name in OPTIONS else not value and "a name":
            raise SettingError("EHB_OPTION_INVALID", option=prefix + name, value=redacted(value), allowed=allowed)
    return options


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The settings of `stream_to_delta`."""

    table: str = required(parse_table)
    checkpoint_location: str = required(parse_location)
    trigger: Mapping[str, Any] = required(parse_trigger)
    source: Mapping[str, str] = hub()
    sink: Mapping[str, str] = group(_writer)


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query. It applies `rows` to the hub's events, and appends the result to the table."""
    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    writer = rows(events).writeStream.outputMode("append").trigger(**settings.trigger)
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    return writer.foreachBatch(once(settings.table, **settings.sink)).start()
