"""A stream into a Delta table, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.exactly_once import once
from spark_ehbalance.exactly_once.writing import OPTIONS
from spark_ehbalance.jobs.program import check_delta
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
from spark_ehbalance.settings.parsing import flag, whole
from spark_ehbalance.settings.secrets import shown

_SINK = PREFIX + "sink."

#: What `once` takes: the writer's options, and the name under which the table remembers what was written.
_ONCE = (*OPTIONS, "source")

#: Parsers of options that Delta checks only when the first batch is written.
_VALUES: Mapping[str, Callable[[str], object]] = {
    "mergeSchema": flag,
    "optimizeWrite": flag,
    "maxRecordsPerFile": whole(0),
}


def _writer(prefix: str, options: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in options.items():
        refuse_secret(shown(prefix + name), value)
    return options


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The job's settings, checked."""

    table: str = required(table_name)
    checkpoint_location: str = required(place)
    trigger: Mapping[str, Any] = required(trigger_of)
    source: Mapping[str, str] = hub()
    sink: Mapping[str, str] = group(_writer)

    def __post_init__(self) -> None:
        for name, value in self.sink.items():
            if name not in _ONCE:
                raise SettingError(
                    f"there is no setting {shown(_SINK + name)}: allowed are "
                    + ", ".join(_SINK + option for option in _ONCE)
                )
            try:
                _VALUES.get(name, str)(value)
            except ValueError as allowed:
                raise SettingError(f"{_SINK}{name}={shown(value)} is wrong: allowed is {allowed}") from None


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query that appends `rows`, made of the hub's events, to the table. Raises `SettingError` if it cannot
    be written."""
    check_delta(spark, settings.table)
    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    writer = rows(events).writeStream.outputMode("append").trigger(**settings.trigger)
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    return writer.foreachBatch(once(settings.table, **settings.sink)).start()
