"""Keeps the table small: removes files of earlier versions, and those that were never committed."""

from __future__ import annotations

import re
import time
from collections.abc import Container

from deltalake import Schema

from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.table_format import SCHEMA
from spark_ehbalance.stores.delta.version import file_names

#: Hours after which files that no log knows are removed, such as those of a process that was killed while writing.
ORPHAN_HOURS = 1

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

#: The names of data files: those written here, and those of delta-rs and Spark.
_DATA_FILE = re.compile(rf"(?:{_UUID}|part-\d{{5,}}-{_UUID}[.-]c\d{{3,}}(?:\.\w+)*)\.parquet")


def tidy(folder: Folder) -> None:
    """Remove the data and log files that newer versions have replaced."""
    table = folder.open_table()
    # A vacuum would also write two commits, and remove nothing if it loses the race for the first.
    folder.remove(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
    table.cleanup_metadata()


def add_columns(folder: Folder) -> None:
    """Add the columns that a table of an earlier version lacks."""
    table = folder.open_table()
    known = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(SCHEMA).fields if field.name not in known]:
        table.alter.add_columns(missing)


def remove_orphans(folder: Folder) -> None:
    """Remove old data files that no log knows. A vacuum would remove whatever else is in the folder and below it."""
    known = file_names(folder.open_table())
    folder.remove(_orphans(folder, known, time.time() - 3600 * ORPHAN_HOURS))


def _orphans(folder: Folder, known: Container[str], before: float) -> list[str]:
    """Data files that are not `known` and were last changed before that time, in seconds since 1970."""
    return [
        file.name
        for file in folder.listed()
        if _DATA_FILE.fullmatch(file.name) and file.name not in known and file.changed and file.changed < before
    ]
