"""Bodies into columns, and why one cannot be parsed: JSON by `json_values`, Avro by Spark's `from_avro`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_ehbalance.installed import Py4JError
from spark_ehbalance.jobs.json_values import JsonReader, RejectedError
from spark_ehbalance.jobs.settings import PREFIX, SettingError
from spark_ehbalance.spark.sessions import cause

#: The columns of a parsed frame beside those of events: the parsed fields, and why they are not there.
VALUE, REASON = "value", "reason"

#: Columns of the event that stay beside the parsed fields.
OF_EVENT = ("partition", "sequenceNumber", "enqueuedTime")

#: Bodies that a Python worker gets at once, of up to 1 MB each, or 20 MB on dedicated clusters.
_BODIES = ("spark.sql.execution.arrow.maxRecordsPerBatch", 256)

#: Properties of the JVM: the most bytes or items of an Avro value, which are allocated as soon as they are announced.
AVRO_LIMITS = (
    "org.apache.avro.limits.string.maxLength",
    "org.apache.avro.limits.bytes.maxLength",
    "org.apache.avro.limits.collectionItems.maxLength",
)
#: The limit for events of 1 MB, and the largest that is accepted, for those of 20 MB on dedicated clusters.
_LIMIT, _MOST_LIMIT = 1024 * 1024, 20 * 1024 * 1024

#: Spark reads an Avro decimal of at most so many digits as a long, and does not look at what it leaves out.
_LONG_DIGITS, _LONG_BYTES = 18, 8

#: In a schema's JSON, what makes its fields nullable.
_NULLABLE = ('"nullable":false', '"nullable":true')


class Parser:
    """Parses bodies of the `format` json or avro by a `schema`: DDL, or Avro's JSON."""

    def __init__(self, spark: SparkSession, format: str, schema: str) -> None:
        """Raises `SettingError` for a schema that is none, and for Avro without its limits or Spark's package."""
        self._avro = format == "avro"
        if self._avro:
            _need_limits(spark)
            _need_avro(spark)
        try:
            if self._avro:
                # A record is encoded as its fields are, so that this reads the same bytes. What cannot be read is a
                # record of nulls, which others may be too; a field with a record is null then only. `from_avro` ignores
                # what follows the record: the mark behind the body must come right after it.
                self._end = bytearray(secrets.token_bytes(16))
                end = {"type": "fixed", "name": "ehbalance_end", "size": len(self._end)}
                given = json.loads(schema)
                check_decimals(given)
                fields = [{"name": VALUE, "type": given}, {"name": "end", "type": end}]
                self._schema = json.dumps({"type": "record", "name": "ehbalance_event", "fields": fields})
            else:
                ddl = StructType.fromDDL(schema)
                self._struct = ddl if isinstance(ddl, StructType) else StructType()
                JsonReader(self._struct)
                spark.conf.set(*_BODIES)
                # A Delta table takes NOT NULL neither in arrays nor in maps.
                self._stored = StructType.fromJson(json.loads(self._struct.json().replace(*_NULLABLE)))
            empty = self.parse(spark.createDataFrame([], "body BINARY, " + ", ".join(f"{c} STRING" for c in OF_EVENT)))
            struct = empty.schema[VALUE].dataType
            if not isinstance(struct, StructType) or not struct.names:
                raise ValueError("it needs fields")
        except (PySparkException, Py4JError, ValueError) as error:
            why = cause(error) or str(error).strip().partition("\n")[0]
            raise SettingError(f"{PREFIX}schema is no schema for {PREFIX}format={format}: {why}") from None
        names = [name.lower() for name in struct.names]
        if own := [each for each in OF_EVENT if each.lower() in names]:
            raise SettingError(f"{PREFIX}schema has a field {own[0]}, which is the name of a column of the event")

    def parse(self, events: DataFrame) -> DataFrame:
        """`events` with the columns `value`, a struct, and `reason`, one of which is null."""
        body = F.col("body")
        if self._avro:
            from pyspark.sql.avro.functions import from_avro

            end, found = F.lit(self._end), F.col(VALUE)
            read = events.withColumn(VALUE, from_avro(F.concat(body, end), self._schema, {"mode": "PERMISSIVE"}))
            why = F.when(body.isNull(), "no body").when(found[VALUE].isNull(), "no Avro by this schema")
            read = read.withColumn(REASON, why.when(found["end"] != end, "more than an Avro record"))
            return read.withColumn(VALUE, F.when(F.col(REASON).isNull(), found[VALUE]))
        added = [StructField(VALUE, self._stored), StructField(REASON, StringType())]
        return events.mapInArrow(partial(_read, self._struct), StructType([*events.schema, *added]))


def _read(schema: StructType, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    reader = JsonReader(schema)
    for batch in batches:
        values: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for body in batch.column("body").to_pylist():
            value, reason = None, None
            try:
                value = reader.read(body)
            except RejectedError as error:
                reason = error.reason
            values.append(value)
            reasons.append(reason)
        columns = [*batch.columns, pa.array(values, reader.type), pa.array(reasons, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, VALUE, REASON])


def _need_limits(spark: SparkSession) -> None:
    local = spark.sparkContext._jsc.sc().isLocal()  # its tasks run in the driver's JVM
    if local:
        jvm: Any = spark._jvm
        given = " ".join(f"-D{name}={jvm.java.lang.System.getProperty(name)}" for name in AVRO_LIMITS)
    else:
        conf = spark.sparkContext.getConf()
        given = " ".join(conf.get(f"spark.executor.{kind}JavaOptions", "") or "" for kind in ("default", "extra"))
    if missing := missing_limits(given):
        raise SettingError(
            f"{PREFIX}format=avro needs limits in the JVM, which a body of a few bytes that announces 2^31 items would "
            f"end: add {' '.join(f'-D{name}={_LIMIT}' for name in missing)} to "
            f"spark.{'driver' if local else 'executor'}.extraJavaOptions"
        )


def missing_limits(java_options: str) -> list[str]:
    """Those of `AVRO_LIMITS` that `java_options` do not set, or set above the size of an event."""
    given = dict(re.findall(r"(?<!\S)[\"']?-D([\w.]+)=(\d+)[\"']?(?!\S)", java_options))
    return [name for name in AVRO_LIMITS if not 0 < int(given.get(name, 0)) <= _MOST_LIMIT]


def check_decimals(schema: Any) -> None:
    """Raise `SettingError` if Avro's `schema` has a decimal of which Spark stores the last 64 bits, whatever it is."""
    if isinstance(schema, list | dict):
        for inner in schema.values() if isinstance(schema, dict) else schema:
            check_decimals(inner)
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return
    precision, size = schema.get("precision"), schema.get("size", _LONG_BYTES + 1)
    if isinstance(precision, int) and precision <= _LONG_DIGITS and isinstance(size, int) and size > _LONG_BYTES:
        raise SettingError(
            f"{PREFIX}schema has a decimal of precision {precision}, which Spark cuts to 64 bits in silence: write "
            '"precision": 38, which reads the same bytes'
        )


def _need_avro(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    try:
        jvm.java.lang.Class.forName("org.apache.spark.sql.avro.AvroDataToCatalyst", False, loader)
    except Py4JError:
        raise SettingError(
            f"{PREFIX}format=avro needs a package of Spark that is not there: submit with "
            f"--packages org.apache.spark:spark-avro_2.13:{spark.version}"
        ) from None
