"""Bodies into columns with Spark's own parsers, and why one cannot be parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_ehbalance.installed import Py4JError
from spark_ehbalance.jobs.settings import PREFIX, SettingError
from spark_ehbalance.spark.sessions import cause

#: The columns of a parsed frame beside those of events: the parsed fields, and why they are not there.
VALUE, REASON = "value", "reason"

#: Columns of the event that stay beside the parsed fields.
OF_EVENT = ("partition", "sequenceNumber", "enqueuedTime")

#: Where `from_json` tells that a body does not fit.
_CORRUPT = "ehbalance_corrupt"

#: Any objects, for `from_json`, without their fields.
_OBJECTS = f"array<struct<{_CORRUPT}: string>>"

#: Characters of a value that a reason repeats.
_SHOWN = 100


class Parser:
    """Parses bodies of the `format` json or avro by a `schema`: DDL, or Avro's JSON."""

    def __init__(self, spark: SparkSession, format: str, schema: str) -> None:
        """Raises `SettingError` for a schema that is none, and for Avro without Spark's package for it."""
        self._avro = format == "avro"
        if self._avro:
            _need_avro(spark)
        try:
            if self._avro:
                # A record is encoded as its fields are, so that this reads the same bytes. What cannot be read is a
                # record of nulls, which others may be too; a field with a record is null then only.
                field = {"name": VALUE, "type": json.loads(schema)}
                self._schema = json.dumps({"type": "record", "name": "ehbalance_event", "fields": [field]})
            else:
                struct = StructType.fromDDL(schema)
                self._struct = struct if isinstance(struct, StructType) else StructType()
            empty = self.parse(spark.createDataFrame([], "body BINARY, " + ", ".join(f"{c} STRING" for c in OF_EVENT)))
            fields = empty.schema[VALUE].dataType
            if not isinstance(fields, StructType) or not fields.names:
                raise ValueError("it needs fields")
        except (PySparkException, Py4JError, ValueError) as error:
            why = cause(error) or str(error).strip().partition("\n")[0]
            raise SettingError(f"{PREFIX}schema is no schema for {PREFIX}format={format}: {why}") from None
        names = [name.lower() for name in fields.names]
        if own := [each for each in OF_EVENT if each.lower() in names]:
            raise SettingError(f"{PREFIX}schema has a field {own[0]}, which is the name of a column of the event")

    def parse(self, events: DataFrame) -> DataFrame:
        """`events` with the columns `value`, a struct, and `reason`, one of which is null."""
        body = F.col("body")
        if self._avro:
            from pyspark.sql.avro.functions import from_avro

            read = events.withColumn(VALUE, from_avro(body, self._schema, {"mode": "PERMISSIVE"})[VALUE])
            why = F.when(body.isNull(), "no body").when(F.col(VALUE).isNull(), "no Avro by this schema")
            return read.withColumn(REASON, why)
        schema = StructType([*self._struct, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        read = events.withColumn(VALUE, F.from_json(body.cast("string"), schema, options))
        read = read.withColumn(REASON, _why_not(self._struct))
        return read.withColumn(VALUE, F.when(F.col(REASON).isNull(), F.col(VALUE).dropFields(_CORRUPT)))


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


def _why_not(schema: StructType) -> Column:
    """Why a body is not accepted; null if it is."""
    text, value = F.col("body").cast("string"), F.col(VALUE)
    corrupt = value[_CORRUPT].isNotNull()
    # `from_json` takes an array of objects for its first one.
    no_object = ~F.ltrim(text).startswith("{") | (corrupt & F.json_object_keys(text).isNull())
    why = F.when(F.col("body").isNull(), "no body").when(~F.is_valid_utf8(text), "no UTF-8")
    why = why.when(no_object, "no JSON object")
    # `from_json` leaves out what comes after the first object; in an array of two that changes their number.
    objects = F.from_json(F.concat(F.lit("["), text, F.lit(",{}]")), _OBJECTS)
    why = why.when(~F.size(objects).eqNullSafe(2), "more than a JSON object")
    fields = list(_fields(schema))
    for path, field in fields:
        given = F.get_json_object(text, "$" + "".join(f"['{name}']" for name in path))
        wrong = F.lit(f"field {'.'.join(path)} is no {field.dataType.simpleString()}: ")
        is_wrong = corrupt & given.isNotNull() & _at(value, path).isNull()
        why = why.when(is_wrong, F.concat(wrong, F.left(given, F.lit(_SHOWN))))
    why = why.when(corrupt, "it does not fit the schema")
    for path, field in fields:
        if not field.nullable:
            missing = _at(value, path[:-1]).isNotNull() & _at(value, path).isNull()
            why = why.when(missing, f"field {'.'.join(path)} is missing or null, and NOT NULL in the schema")
    return why


def _fields(schema: StructType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """All fields with their paths, those inside of others first, which say best what is wrong."""
    for field in schema:
        if isinstance(field.dataType, StructType):
            yield from _fields(field.dataType, (*path, field.name))
        yield (*path, field.name), field


def _at(value: Column, path: tuple[str, ...]) -> Column:
    return reduce(Column.getField, path, value)
