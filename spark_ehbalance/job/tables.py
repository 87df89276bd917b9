"""Whether a job's table can be written, asked of Spark's catalog before anything is read."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from itertools import dropwhile

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from spark_ehbalance.delta.target import is_path
from spark_ehbalance.job.settings import PREFIX, SettingError
from spark_ehbalance.values.secrets import shown


def format_of(spark: SparkSession, table: str, setting: str = "table") -> str | None:
    """The format of the `table` in the catalog that the `setting` names; None for a path, for one that does not exist,
    and where it is not known.

    Raises `SettingError` for a view, for a name without its database, and for what is no name.
    """
    if is_path(table):
        return None
    name = f"{PREFIX}{setting}"
    try:
        if not spark.catalog.tableExists(table):
            if (database := database_of(table)) and not spark.catalog.databaseExists(database):
                raise SettingError(f"{name}={table}: there is no database {database}, create it first")
            return None
        if spark.catalog.getTable(table).tableType in ("TEMPORARY", "VIEW"):
            raise SettingError(f"{name}={table} is a view: rows can be appended to tables only")
        return provider_of(spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect())
    except AnalysisException as error:
        why = str(error).splitlines()[0]
        raise SettingError(f"{name}={shown(table)} is no path and cannot be looked up: {why}") from None


def check_delta(spark: SparkSession, table: str, setting: str = "table") -> None:
    """Raise `SettingError` unless the `table` that the `setting` names is one of Delta, or can be created."""
    if (format_of(spark, table, setting) or "delta").lower() != "delta":
        raise SettingError(f"{PREFIX}{setting}={table} is no Delta table: write to a new one, or to one of Delta")


def overlap(one: str, other: str) -> bool:
    """Whether two settings mean the same table, or one whose folder lies in the other's, by their texts alone."""
    if is_path(one) != is_path(other):
        return False
    first, second = (_folder(each) if is_path(each) else _whole_name(each) for each in (one, other))
    return first.startswith(second) or second.startswith(first)


def _folder(text: str) -> str:
    """The one spelling of a path or an address, with a slash behind it."""
    path = re.sub(r"^file:(//(localhost)?(?=/))?", "", text)
    scheme, slashes, rest = path.rpartition("://")
    whole = posixpath.normpath(rest) if slashes else posixpath.abspath(path)
    return f"{scheme.lower()}{slashes}{re.sub('^//', '/', whole)}".rstrip("/") + "/"


def _whole_name(text: str) -> str:
    """A name in the catalog with what Spark adds by default, in lower case, and a dot behind it."""
    parts = [each.strip("`").lower() for each in re.findall(r"`(?:[^`]|``)*`|[^.`]+", text)]
    return ".".join([*("spark_catalog", "default")[: max(3 - len(parts), 0)], *parts]) + "."


def database_of(table: str) -> str:
    """What stands before the last part of a name in the catalog; empty if it has one part."""
    return re.sub(r"\.?(`([^`]|``)*`|[^.`]*)$", "", table, count=1)


def provider_of(described: Iterable[Row]) -> str | None:
    """The table's format by `DESCRIBE TABLE EXTENDED`, whose first rows are columns, which may have any name."""
    rows = dropwhile(lambda row: row.col_name != "# Detailed Table Information", described)
    return next((row.data_type for row in rows if row.col_name == "Provider"), None)
