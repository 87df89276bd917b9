"""JSON bodies into columns, and why one cannot be parsed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
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

#: In a schema's JSON, what makes its fields nullable.
_NULLABLE = ('"nullable":false', '"nullable":true')


class Parser:
    """Parses JSON bodies by a `schema` in DDL."""

    def __init__(self, spark: SparkSession, schema: str) -> None:
        """Raises `SettingError` for a schema that is none."""
        try:
            ddl = StructType.fromDDL(schema)
            self._struct = ddl if isinstance(ddl, StructType) else StructType()
            JsonReader(self._struct)
            # A Delta table takes NOT NULL neither in arrays nor in maps.
            stored = StructType.fromJson(json.loads(self._struct.json().replace(*_NULLABLE)))
            if not stored.names:
                raise ValueError("it needs fields")
        except (PySparkException, Py4JError, ValueError) as error:
            why = cause(error) or str(error).strip().partition("\n")[0]
            raise SettingError(f"{PREFIX}schema is no schema: {why}") from None
        names = [name.lower() for name in stored.names]
        if own := [each for each in OF_EVENT if each.lower() in names]:
            raise SettingError(f"{PREFIX}schema has a field {own[0]}, which is the name of a column of the event")
        self._added = [StructField(VALUE, stored), StructField(REASON, StringType())]
        spark.conf.set(*_BODIES)

    def parse(self, events: DataFrame) -> DataFrame:
        """`events` with the columns `value`, a struct, and `reason`, one of which is null."""
        return events.mapInArrow(partial(_read, self._struct), StructType([*events.schema, *self._added]))


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
