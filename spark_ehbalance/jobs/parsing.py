"""Parses JSON bodies into columns, and adds the reason if a body cannot be parsed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from spark_ehbalance.dependencies import Py4JError
from spark_ehbalance.jobs.json_values import JsonReader, RejectedError
from spark_ehbalance.jobs.settings import PREFIX, SettingError
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.spark.sessions import cause

#: The columns that parsing adds: a struct of the fields, and the reason if the body could not be parsed.
VALUE, REASON = "value", "reason"

#: Columns of the event that the tables contain in addition to the parsed fields.
EVENT_COLUMNS = ("partition", "sequenceNumber", "enqueuedTime")

#: The setting that limits how many bodies a Python worker holds at once, and its value. A body can be up to 1 MB, or up
#: to 20 MB on dedicated clusters.
_BATCH_SIZE = ("spark.sql.execution.arrow.maxRecordsPerBatch", 256)

#: Replacing the first string with the second in a schema's JSON makes all fields nullable.
_NULLABLE = ('"nullable":false', '"nullable":true')


class Parser:
    """Parses JSON bodies according to a `schema` in DDL."""

    def __init__(self, spark: SparkSession, schema: str) -> None:
        """Raises `SettingError` for an invalid schema."""
        try:
            ddl = StructType.fromDDL(schema)
            self._struct = ddl if isinstance(ddl, StructType) else StructType()
            JsonReader(self._struct)
            # Delta tables do not support NOT NULL in arrays or maps.
            stored = StructType.fromJson(json.loads(self._struct.json().replace(*_NULLABLE)))
            if not stored.names:
                raise ValueError("it has no fields")
        except (PySparkException, Py4JError, ValueError) as error:
            reason = cause(error) or str(error).strip().partition("\n")[0]
            raise _invalid(f"{redacted(schema)} ({reason})", "a schema in Spark's DDL") from None
        names = [name.lower() for name in stored.names]
        for column in EVENT_COLUMNS:
            if column.lower() in names:
                raise _invalid(redacted(schema), f"field names other than {', '.join(EVENT_COLUMNS)}")
        self._added = [StructField(VALUE, stored), StructField(REASON, StringType())]
        spark.conf.set(*_BATCH_SIZE)

    def parse(self, events: DataFrame) -> DataFrame:
        """`events` with two more columns: `value`, a struct, and `reason`. One of the two is null."""
        return events.mapInArrow(partial(_read, self._struct), StructType([*events.schema, *self._added]))


def _invalid(value: str, allowed: str) -> SettingError:
    return SettingError("EHB_OPTION_INVALID", option=f"{PREFIX}schema", value=value, allowed=allowed)


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
