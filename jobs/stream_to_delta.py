"""Stream an event hub into a Delta table, or into a table of another format.

    EHBALANCE_CONNECTION_STRING=... spark-submit --properties-file conf/stream_to_delta.conf jobs/stream_to_delta.py

The settings are Spark properties, explained in conf/stream_to_delta.conf. The connection string is an environment
variable, because command lines and Spark's UI show properties to everybody; with `source.fullyQualifiedNamespace`
(Entra ID) there is none. Other secrets are references: `env:NAME` or `file:PATH`. SIGTERM and SIGINT stop the job after
the running batch.

Exactly once: a Delta table holds every event once, whatever happens to the job and to other jobs that write the same
table with the same lease table (`spark_ehbalance.delta.once`). With `exactlyOnce=false`, and in other formats, events
are there again that a job has written and not checkpointed in the lease table before it crashed.

With a lease table the job refuses Spark's file sink (Parquet, JSON and others): of the queries that write into one
folder, each silently skips the batches whose number another has written.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

import spark_ehbalance
from spark_ehbalance.delta import once
from spark_ehbalance.delta.target import check_name, is_path
from spark_ehbalance.delta.writing import OPTIONS
from spark_ehbalance.errors import OptionError, TargetError
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.values.locations import is_relative
from spark_ehbalance.values.parsing import parse_duration
from spark_ehbalance.values.secrets import REFERENCES, is_reference, looks_secret, shown

PREFIX = "spark.ehbalance.job."
SOURCE, SINK = PREFIX + "source.", PREFIX + "sink."
SECRET = "EHBALANCE_CONNECTION_STRING"

#: What `once` takes: the writer's options, and the name under which the table remembers what was written.
ONCE = (*OPTIONS, "source")

#: Options of Spark's writer that are settings of the job, in lower case: Spark ignores the case.
_OWN = {"path": "table", "checkpointlocation": "checkpointLocation"}

#: Allowed values of options that Delta checks only when the first batch is written.
_VALUES = {
    "mergeschema": ("true|false", "true or false"),
    "optimizewrite": ("true|false", "true or false"),
    "maxrecordsperfile": ("[0-9]{1,18}", "a whole number"),
}

#: The formats that Spark writes with its file sink.
FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})


class SettingError(Exception):
    """A setting is missing or wrong. The text names it, its value and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """The job's settings, checked."""

    table: str
    format: str
    checkpoint_location: str
    trigger: Mapping[str, Any]
    source: Mapping[str, str]
    exactly_once: bool
    sink: Mapping[str, str]

    def check_format(self, format: str) -> None:
        """Raise `SettingError` if `format` cannot be written exactly once, or loses rows when queries share a hub."""
        if format.lower() in FILE_FORMATS and any(name.lower() == "leasetable" for name in self.source):
            raise SettingError(
                f"{PREFIX}table={self.table} is of the format {format}, and {SOURCE}leaseTable is set: queries that "
                "write files into one folder lose rows in silence; use the format delta, or leave the lease table out"
            )
        if self.exactly_once and format.lower() != "delta":
            raise SettingError(
                f"{PREFIX}table={self.table} is of the format {format}, which cannot be written exactly once: "
                f"leave {PREFIX}format out, or set it and {PREFIX}exactlyOnce=false"
            )

    @classmethod
    def read(cls, conf: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
        """Read and check Spark's properties and the environment. Raises `SettingError`."""
        source = {key.removeprefix(SOURCE): value for key, value in conf.items() if key.startswith(SOURCE)}
        names = ("table", "format", "checkpointLocation", "trigger", "exactlyOnce")
        sink = {key.removeprefix(SINK): value for key, value in conf.items() if key.startswith(SINK)}
        given = {key for key in conf if key.startswith(PREFIX) and not key.startswith((SOURCE, SINK))}
        if unknown := sorted(given - {PREFIX + name for name in names}):
            allowed = ", ".join(PREFIX + name for name in names)
            raise SettingError(
                f"there is no setting {shown(unknown[0])}: allowed are {allowed}, {SOURCE}OPTION and {SINK}OPTION"
            )
        table, format, checkpoint, trigger, once = (conf.get(PREFIX + name, "").strip() for name in names)
        for name, value in (("table", table), ("checkpointLocation", checkpoint)):
            if not value:
                raise SettingError(f"{PREFIX}{name} is not set: a path or an address that Spark can write is needed")
            if looks_secret(value):
                raise SettingError(f"{PREFIX}{name} holds what looks like a key or a signed address, for all to see")
        if not re.fullmatch(r"\w{0,30}", format):
            raise SettingError(
                f"{PREFIX}format={shown(format)} is wrong: allowed is a format's short name, such as delta"
            )
        checked = _source(source, environment)
        leases = next((value for name, value in source.items() if name.lower() == "leasetable"), "/")
        if is_relative(leases) and not conf.get("spark.master", "local").startswith("local"):
            raise SettingError(
                f"{SOURCE}leaseTable={shown(leases)} is a relative path, which every job on a cluster resolves "
                "differently: write an address or an absolute path"
            )
        format = format or "delta"
        exactly_once = _exactly_once(once, format)
        if exactly_once:
            try:
                check_name(table)
            except TargetError as error:
                raise SettingError(f"{PREFIX}table: {error}") from None
        _check_sink(sink, exactly_once)
        settings = cls(table, format, checkpoint, _trigger(trigger), checked, exactly_once, sink)
        settings.check_format(format)
        return settings


def _exactly_once(text: str, format: str) -> bool:
    if text not in ("", "true", "false"):
        raise SettingError(f"{PREFIX}exactlyOnce={shown(text)} is wrong: allowed is true or false")
    return text == "true" or (text == "" and format.lower() == "delta")


def _check_sink(options: Mapping[str, str], exactly_once: bool) -> None:
    for name, value in options.items():
        if looks_secret(value):
            raise SettingError(f"{shown(SINK + name)} holds what looks like a key or a signed address, for all to see")
        if exactly_once and name not in ONCE:
            raise SettingError(
                f"there is no setting {shown(SINK + name)}: a table that is written exactly once has "
                + ", ".join(SINK + option for option in ONCE)
            )
        if own := _OWN.get(name.lower()):
            raise SettingError(f"{SINK}{name} cannot be set: it is {PREFIX}{own}")
        pattern, allowed = _VALUES.get(name.lower(), (None, ""))
        if pattern and not re.fullmatch(pattern, value.lower()):
            raise SettingError(f"{SINK}{name}={shown(value)} is wrong: allowed is {allowed}")


def _trigger(text: str) -> dict[str, Any]:
    if text == "availableNow":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{round(parse_duration(text) * 1000)} milliseconds"}
    except ValueError as allowed:
        raise SettingError(f"{PREFIX}trigger={shown(text)} is wrong: allowed is availableNow or {allowed}") from None


def _source(options: dict[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in options}
    for name, value in options.items():
        if name.lower().startswith(("connectionstring", "storagesecrets.")) and not is_reference(value):
            raise SettingError(f"{shown(SOURCE + name)} holds a secret, for all to see: write {REFERENCES}")
    if "connectionstring" not in given:
        if bool(environment.get(SECRET)) == ("fullyqualifiednamespace" in given):
            both = "both" if environment.get(SECRET) else "neither"
            raise SettingError(
                f"{both} of the environment variable {SECRET} and {SOURCE}fullyQualifiedNamespace set: set one of them"
            )
        if environment.get(SECRET):
            options = {**options, "connectionString": f"env:{SECRET}"}  # plans and event logs show the reference only
    try:
        stream_options(options)
    except OptionError as error:
        raise SettingError(f"{SOURCE}*: {error}") from None
    return options


def rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """The stream of rows for the table. Put your own transformations here."""
    events = spark.readStream.format("ehbalance").options(**settings.source).load()
    return events.selectExpr(
        "cast(body as string) as body",
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        "partitionKey",
        "properties",
    )


def check_table(spark: SparkSession, settings: Settings) -> None:
    """Check the table, if it exists, or that its database does. Raises `SettingError`."""
    if is_path(settings.table):
        return
    try:
        if not spark.catalog.tableExists(settings.table):
            if (database := database_of(settings.table)) and not spark.catalog.databaseExists(database):
                raise SettingError(f"{PREFIX}table={settings.table}: there is no database {database}, create it first")
            return
        if spark.catalog.getTable(settings.table).tableType in ("TEMPORARY", "VIEW"):
            raise SettingError(f"{PREFIX}table={settings.table} is a view: rows can be appended to tables only")
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {settings.table}").collect()
    except AnalysisException as error:
        why = str(error).splitlines()[0]
        raise SettingError(f"{PREFIX}table={shown(settings.table)} is no path and cannot be looked up: {why}") from None
    settings.check_format(provider_of(described) or settings.format)


def database_of(table: str) -> str:
    """What stands before the last part of a name in the catalog; empty if it has one part."""
    return re.sub(r"\.?(`([^`]|``)*`|[^.`]*)$", "", table, count=1)


def provider_of(described: Iterable[Row]) -> str | None:
    """The table's format by `DESCRIBE TABLE EXTENDED`, whose first rows are columns, which may have any name."""
    table = dropwhile(lambda row: row.col_name != "# Detailed Table Information", described)
    return next((row.data_type for row in table if row.col_name == "Provider"), None)


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query that appends `rows` to the table."""
    writer = (
        rows(spark, settings)
        .writeStream.outputMode("append")
        .option("checkpointLocation", settings.checkpoint_location)
        .trigger(**settings.trigger)
    )
    if settings.exactly_once:
        return writer.foreachBatch(once(settings.table, **settings.sink)).start()
    writer = writer.format(settings.format).options(**settings.sink)
    return writer.start(settings.table) if is_path(settings.table) else writer.toTable(settings.table)


def main() -> None:
    # It reads the properties of spark-submit.
    if is_remote() or "SPARK_REMOTE" in os.environ:
        print("Error: this job needs a driver of its own: submit it without --remote and SPARK_REMOTE", file=sys.stderr)
        sys.exit(2)
    SparkContext._ensure_initialized()  # connects to spark-submit's JVM, which has the properties; starts no Spark yet
    try:
        settings = Settings.read(dict(SparkConf().getAll()), os.environ)
        spark = SparkSession.builder.getOrCreate()
        check_table(spark, settings)
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    spark_ehbalance.register(spark)
    spark_ehbalance.run(start(spark, settings))
    spark.stop()


if __name__ == "__main__":
    main()
