"""A hub into another one, as a stream: bodies, keys and properties with their types, in order by key.

What cannot be sent fails the job, is skipped, or goes into a table of its own, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.sending.write_options import SKIP, WriteOptions, write_options
from spark_ehbalance.exactly_once import write_once
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
from spark_ehbalance.settings.declared import declared
from spark_ehbalance.spark.writer import unsendable
from spark_ehbalance.text import logger

#: The variable of the environment with the connection string of the hub that is written.
SINK_SECRET = "EHBALANCE_SINK_CONNECTION_STRING"

_LOG = logger(__name__)

#: What is lost of each event, for the log.
_NOT_COPIED = (
    "not copied: sequence numbers, offsets, enqueued times and publishers, which the service sets; properties of the "
    "message that are empty or 0; types that have no JSON: UUIDs, decimals, characters, lists and maps in properties "
    "are sent as text, times as numbers, and bodies that are AMQP values or sequences as the bytes of their text"
)

#: Columns of the event that stay beside it in the table of those that cannot be sent.
OF_EVENT = ("partition", "sequenceNumber", "enqueuedTime")

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
    unsendable: str | None = declared(None, table_name, "the table for events that cannot be sent")
    sink: Mapping[str, str] = hub(_sink, SINK_SECRET)

    def __post_init__(self) -> None:
        if self.unsendable is not None and any(name.lower() == "onunsendable" for name in self.sink):
            raise SettingError(
                f"{PREFIX}unsendable and {PREFIX}sink.onUnsendable are both set: set the table, or fail or skip"
            )
        read, written = _source(self.source).connection.hub_name, _sink(self.sink).connection.hub_name
        if read == written:
            raise SettingError(f"{PREFIX}source.* and {PREFIX}sink.* are the same hub, {read}: it would never end")


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query that sends `rows`, made of the events of the source, to the sink, without the columns `OF_EVENT`,
    which only the table of those that cannot be sent has. Raises `SettingError` if both are one hub by two names."""
    if (hub := _identity(_source(settings.source).connection)) == _identity(_sink(settings.sink).connection):
        raise SettingError(f"{PREFIX}source.* and {PREFIX}sink.* are the same hub, {hub[0]}, by two names")
    _LOG.warning(_NOT_COPIED)
    events = rows(spark.readStream.format("ehbalance").options(**settings.source, **_TYPED).load())
    sink = {**settings.sink, **_TYPED}
    if settings.unsendable is None:
        writer = events.drop(*OF_EVENT).writeStream.format("ehbalance").options(**sink)
    else:
        writer = events.writeStream.foreachBatch(partial(_send_or_keep, settings.unsendable, sink))
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    return writer.trigger(**settings.trigger).start()


def _identity(connection: Connection) -> tuple[str, object]:
    """The hub's name and when it was created, which are the same whatever name its namespace is called by."""
    with HubMetadata(connection, "$Default") as hub:
        hub.partition_ids()
        return connection.hub.lower(), hub.created_ms or connection.hub_name


def _send_or_keep(table: str, sink: Mapping[str, str], batch: DataFrame, number: int) -> None:
    batch.persist()  # read once for both
    try:
        sent = batch.drop(*OF_EVENT)
        write_once(unsendable(batch, write_options(sink), sent.columns), number, table)
        sent.write.format("ehbalance").options(**sink, onUnsendable=SKIP).mode("append").save()
    finally:
        batch.unpersist()
