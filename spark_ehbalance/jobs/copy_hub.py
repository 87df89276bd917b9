"""Copies a stream from one hub to another: bodies, keys, and properties with their types. Events with the same key stay
in order.

Depending on the settings, an event that cannot be sent fails the job, is skipped, or is written to a table exactly
once.
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
    parse_location,
    parse_table,
    parse_trigger,
    required,
)
from spark_ehbalance.query.options import Options, stream_options
from spark_ehbalance.settings.option_specs import option_field
from spark_ehbalance.settings.option_texts import invalid_option
from spark_ehbalance.spark.writer import unsendable

#: Environment variable with the connection string of the hub to which events are written.
SINK_SECRET = "EHBALANCE_SINK_CONNECTION_STRING"

#: Columns that only the table of unsendable events contains.
EVENT_COLUMNS = ("partition", "sequenceNumber", "enqueuedTime")

#: The option that keeps the types of properties. The job sets it for both hubs.
_TYPED = {"jsonProperties": "true"}

#: Options that would break a copy (in lower case), with the reasons.
_FORBIDDEN = {
    "jsonproperties": "the job sets it to true, to keep the types of properties",
    "minpartitions": "several tasks would send events with the same key, so their order would be lost",
}


def _reject(options: Mapping[str, str], *names: str) -> None:
    for name in options:
        if name.lower() in names:
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=name, reason=_FORBIDDEN[name.lower()])


def _source(options: Mapping[str, str]) -> Options:
    _reject(options, *_FORBIDDEN)
    checked = stream_options(options)
    if checked.on_malformed == "keep":
        raise invalid_option("onMalformed", "keep", "fail or skip, because a malformed event cannot be sent")
    return checked


def _sink(options: Mapping[str, str]) -> WriteOptions:
    _reject(options, "jsonproperties")
    return write_options(options)


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """The settings of `copy_hub`."""

    checkpoint_location: str = required(parse_location)
    trigger: Mapping[str, Any] = required(parse_trigger)
    source: Mapping[str, str] = hub(_source)
    unsendable: str | None = option_field(None, parse_table, "the table for events that cannot be sent")
    sink: Mapping[str, str] = hub(_sink, SINK_SECRET)

    def __post_init__(self) -> None:
        if self.unsendable is not None and any(name.lower() == "onunsendable" for name in self.sink):
            raise SettingError(
                "EHB_OPTIONS_CONFLICT",
                options=f"{PREFIX}unsendable and {PREFIX}sink.onUnsendable",
                reason="the table already receives the events that cannot be sent",
            )
        source_hub = _source(self.source).connection.hub_name
        if source_hub == _sink(self.sink).connection.hub_name:
            raise _same_hub(source_hub)


def start(spark: SparkSession, settings: Settings, rows: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
    """Start the query. It applies `rows` to the source's events, and sends the result, without the columns
    `EVENT_COLUMNS`, to the sink. Raises `SettingError` if source and sink are the same hub under two names."""
    if (hub := _identity(_source(settings.source).connection)) == _identity(_sink(settings.sink).connection):
        raise _same_hub(f"{hub[0]}, under two names")
    events = rows(spark.readStream.format("ehbalance").options(**settings.source, **_TYPED).load())
    sink = {**settings.sink, **_TYPED}
    if settings.unsendable is None:
        writer = events.drop(*EVENT_COLUMNS).writeStream.format("ehbalance").options(**sink)
    else:
        writer = events.writeStream.foreachBatch(partial(_send_or_store, settings.unsendable, sink))
    writer = writer.option("checkpointLocation", settings.checkpoint_location)
    return writer.trigger(**settings.trigger).start()


def _same_hub(hub: str) -> SettingError:
    return SettingError(
        "EHB_OPTIONS_CONFLICT",
        options=f"{PREFIX}source.* and {PREFIX}sink.*",
        reason=f"both are the hub {hub}, so the copy would never end",
    )


def _identity(connection: Connection) -> tuple[str, object]:
    """The hub's name and creation time, which are the same whichever name is used for its namespace."""
    with HubMetadata(connection, "$Default") as hub:
        hub.partition_ids()
        return connection.hub.lower(), hub.created_ms or connection.hub_name


def _send_or_store(table: str, sink: Mapping[str, str], batch: DataFrame, number: int) -> None:
    batch.persist()  # so that both writes use the same read
    try:
        sent = batch.drop(*EVENT_COLUMNS)
        write_once(unsendable(batch, write_options(sink), sent.columns), number, table)
        sent.write.format("ehbalance").options(**sink, onUnsendable=SKIP).mode("append").save()
    finally:
        batch.unpersist()
