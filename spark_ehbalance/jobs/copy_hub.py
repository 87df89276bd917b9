"""A hub into another one, as a stream: bodies, keys and properties with their types, in order by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.sending.write_options import WriteOptions, write_options
from spark_ehbalance.jobs.settings import PREFIX, JobSettings, SettingError, hub, place, required, trigger_of
from spark_ehbalance.query.options import Options, stream_options

#: The variable of the environment with the connection string of the hub that is written.
SINK_SECRET = "EHBALANCE_SINK_CONNECTION_STRING"

#: With it both ends keep the types of properties.
_TYPED = {"jsonProperties": "true"}

#: Options that would break a copy: option of the source → why.
_BREAKS = {
    "jsonproperties": "it is true, for types of properties to be kept",
    "minpartitions": "events of a key would be sent by several tasks, in any order",
}


def _refuse(options: Mapping[str, str], *names: str) -> None:
    for name in options:
        if name.lower() in names:
            raise OptionError(f"option {name} cannot be set: {_BREAKS[name.lower()]}")


def _source(options: Mapping[str, str]) -> Options:
    _refuse(options, *_BREAKS)
    checked = stream_options(options)
    if checked.on_malformed == "keep":
        raise OptionError("option onMalformed='keep' is wrong: allowed is fail or skip: no event can be sent on")
    return checked


def _sink(options: Mapping[str, str]) -> WriteOptions:
    _refuse(options, "jsonproperties")
    return write_options(options)


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The job's settings, checked."""

    checkpoint_location: str = required(place)
    trigger: Mapping[str, Any] = required(trigger_of)
    source: Mapping[str, str] = hub(_source)
    sink: Mapping[str, str] = hub(_sink, SINK_SECRET)

    def __post_init__(self) -> None:
        read, written = _source(self.source).connection.hub_name, _sink(self.sink).connection.hub_name
        if read == written:
            raise SettingError(f"{PREFIX}source.* and {PREFIX}sink.* are the same hub, {read}: it would never end")


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query that sends `rows`, made of the events of the source, to the sink."""
    events = spark.readStream.format("ehbalance").options(**settings.source, **_TYPED).load()
    writer = rows(events).writeStream.format("ehbalance").options(**settings.sink, **_TYPED)
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    return writer.trigger(**settings.trigger).start()
