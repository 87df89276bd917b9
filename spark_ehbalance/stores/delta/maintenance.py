"""Keeps the table small: a checkpoint of the log, and the removal of files that no reader needs any more.

Ages are counted back from the newest commit, by the storage's own clock: of machines only those matter that write a
local disk.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Container, Iterable

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from spark_ehbalance.stores.delta.folder import File, Folder
from spark_ehbalance.stores.delta.log import LOG, version_of
from spark_ehbalance.stores.delta.table_format import SCHEMA
from spark_ehbalance.stores.delta.version import check_writable, file_names

#: Seconds for which log files are kept that a checkpoint has replaced. A member that was suspended for less finds the
#: next version still there, and knows that its own is not the newest; see `DeltaStore`.
LOG_SECONDS = 600.0

#: Seconds for which data files are kept that no version needs any more: for readers that are in the middle of one.
DATA_SECONDS = 60.0

#: Hours for which a data file of another writer is kept that no version needs: its commit may be yet to come.
FOREIGN_HOURS = 1

#: What the table tells other engines. They write a checkpoint with every so many of their commits, and then clean up.
PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
}

#: Attempts to open the table.
_ATTEMPTS = 5

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_OWN_DATA = re.compile(rf"{_UUID}\.parquet")

_FOREIGN_DATA = re.compile(rf"part-\d{{5,}}-{_UUID}[.-]c\d{{3,}}(?:\.\w+)*\.parquet")

#: The log's files of one version: its commit, and what engines put beside it.
_LOG_FILE = re.compile(r"\d{20}\.(?:json|crc|checkpoint(?:\.\S+)?\.parquet)")


def tidy(folder: Folder) -> None:
    """Write a checkpoint of the newest version, and remove what newer versions have replaced and what killed writers
    have left."""
    data, staged = folder.listed(), [(file.name, file) for file in folder.staged()]
    staged += [(f"{LOG}/{file.name}", file) for file in folder.staged(LOG)]
    log = folder.listed(LOG)
    table = _opened(folder)  # after the listings: a data file of theirs that it does not need is needed no more
    check_writable(table)
    properties = table.metadata().configuration
    if any(properties.get(name) != value for name, value in PROPERTIES.items()):
        table.alter.set_table_properties(PROPERTIES)
    table.create_checkpoint()
    now = max((file.changed for file in log if version_of(file.name) is not None), default=0.0)
    if folder.is_local:  # its times are those of machines, one of which may have been ahead
        now = min(now, time.time())
    gone = [f"{LOG}/{name}" for name in old_log_files(log, table.version(), now - LOG_SECONDS)]
    gone += old_data_files(data, file_names(table), now)
    gone += [path for path, file in staged if file.changed < now - DATA_SECONDS]
    folder.remove(gone)


def _opened(folder: Folder) -> DeltaTable:
    """The table. A local listing of a log that grows meanwhile may lack a file, which delta-rs takes for a gap."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(DeltaError):
            return folder.open_table()
    return folder.open_table()


def old_log_files(log: Iterable[File], checkpoint: int, before: float) -> list[str]:
    """The files of the log that nobody needs: of versions before the one of the newest `checkpoint`, up to the first
    that was changed at `before` or later. What is kept has no gap, which a reader could take for the end of the log."""
    versions = [(int(file.name[:20]), file) for file in log if _LOG_FILE.fullmatch(file.name)]
    kept = min([checkpoint, *(version for version, file in versions if file.changed >= before)])
    return [file.name for version, file in versions if version < kept]


def old_data_files(data: Iterable[File], needed: Container[str], now: float) -> list[str]:
    """The data files that are not `needed` by the newest version, and old enough.

    One that was never committed never will be: the newest log file is younger, so the version that its author wanted to
    write is taken. Another writer may move its commit to a later version; its files are kept for longer.
    """
    return [
        file.name
        for file in data
        if file.name not in needed
        and (
            (_OWN_DATA.fullmatch(file.name) and file.changed < now - DATA_SECONDS)
            or (_FOREIGN_DATA.fullmatch(file.name) and file.changed < now - 3600 * FOREIGN_HOURS)
        )
    ]


def add_columns(folder: Folder) -> None:
    """Add the columns that a table of an earlier version lacks."""
    table: DeltaTable = folder.open_table()
    check_writable(table)
    known = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(SCHEMA).fields if field.name not in known]:
        table.alter.add_columns(missing)
