"""Keeps the table small: a checkpoint of the log, and the removal of files that no reader needs any more.

Ages are counted back from the newest commit, by the storage's own clock: of machines only those matter that write a
local disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.stores.delta.checkpoint import checkpoint, tombstones
from spark_ehbalance.stores.delta.folder import File, Folder
from spark_ehbalance.stores.delta.log import Head, actions_of, newest_checkpoint, written_here
from spark_ehbalance.stores.delta.names import LOG, commit_file, is_data_file, is_of_a_version, version_of
from spark_ehbalance.stores.delta.version import Shape, check_writable, file_names

#: Seconds for which log files are kept that a checkpoint has replaced. A member that was suspended for less finds the
#: next version still there, and knows that its own is not the newest; see `DeltaStore`.
LOG_SECONDS = 600.0

#: Seconds for which data files are kept that no version needs any more: for readers that are in the middle of one.
DATA_SECONDS = 60.0

#: What the table tells other engines. They write a checkpoint with every so many of their commits, and then clean up.
PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
}

#: Attempts to open the table.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest version of the table, with the actions of its commit."""

    head: Head
    shape: Shape
    actions: list[dict[str, Any]]


def tidy(folder: Folder, table_id: str | None, newest: Callable[[], Newest | None]) -> None:
    """Write a checkpoint of the newest version, and remove what newer versions have replaced and what killed writers
    have left. Files of others stay. `newest` is None where only a whole engine can tell.

    Raises `StoreFormatError` if it is not the table with that id in Delta's metadata: another one was put in its place.
    """
    data, staged = folder.listed(), [(file.name, file) for file in folder.staged()]
    staged += [(f"{LOG}/{file.name}", file) for file in folder.staged(LOG)]
    log = folder.listed(LOG)
    # After the listings: a data file of theirs that the newest version does not need is needed no more.
    version, needed = _checkpoint_by_hand(folder, newest(), data, log) or _checkpoint_by_delta_rs(folder, table_id)
    now = max((file.changed for file in log if version_of(file.name) is not None), default=0.0)
    if folder.is_local:  # its times are those of machines, one of which may have been ahead
        now = min(now, time.time())
    gone = [f"{LOG}/{name}" for name in old_log_files(log, version, now - LOG_SECONDS)]
    # A data file that was never committed never will be: the newest log file is younger, so the version that its author
    # wanted to write is taken. What other engines have written is theirs to remove, by their VACUUM.
    unneeded = [(file.name, file) for file in data if is_data_file(file.name) and file.name not in needed]
    gone += [path for path, file in unneeded + staged if file.changed < now - DATA_SECONDS]
    folder.remove(gone)


def _checkpoint_by_hand(
    folder: Folder, newest: Newest | None, data: list[File], log: list[File]
) -> tuple[int, Container[str]] | None:
    """The version of the checkpoint, and the data files that it needs; None if it takes a whole engine, or if the
    version has a checkpoint."""
    if newest is None or newest.shape.refused or not newest.shape.properties.items() >= PROPERTIES.items():
        return None
    version, add = newest.head.version, written_here(newest.actions)
    if add is None or newest_checkpoint(file.name for file in log) >= version:
        return None
    if not _follows(folder, newest.actions, version):
        return None
    replaced = [(file.name, file.size) for file in data if is_data_file(file.name) and file.name != add["add"]["path"]]
    for path, content in checkpoint(version, [*newest.shape.actions, add, *tombstones(replaced)]).items():
        folder.write(path, content)
    return version, newest.head.files


def _follows(folder: Folder, actions: list[dict[str, Any]], version: int) -> bool:
    """Whether the commit of `version`, with these `actions`, replaces what the one before has added. It does not where
    another table was put in the place of ours, and our commit came after that."""
    replaced = {action["remove"]["path"] for action in actions if "remove" in action}
    try:
        before = actions_of(folder.read(commit_file(version - 1)))
    except (FileNotFoundError, ValueError):
        return False
    return replaced == {action["add"]["path"] for action in before if "add" in action}


def _checkpoint_by_delta_rs(folder: Folder, table_id: str | None) -> tuple[int, Container[str]]:
    """As `_checkpoint_by_hand`, by reading the table."""
    table = _opened(folder)
    if table_id not in (None, str(table.metadata().id)):
        raise StoreFormatError(
            f"somebody has put another table in the place of the lease table at {folder.uri}: nothing was changed there"
        )
    check_writable(table)
    properties = table.metadata().configuration
    if any(properties.get(name) != value for name, value in PROPERTIES.items()):
        table.alter.set_table_properties(PROPERTIES)
    table.create_checkpoint()
    return table.version(), file_names(table)


def _opened(folder: Folder) -> DeltaTable:
    """The table. A local listing of a log that grows meanwhile may lack a file, which delta-rs takes for a gap."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(DeltaError):
            return folder.open_table()
    return folder.open_table()


def old_log_files(log: Iterable[File], checkpoint: int, before: float) -> list[str]:
    """The files of the log that nobody needs: of versions before the one of the newest `checkpoint`, up to the first
    that was changed at `before` or later. What is kept has no gap, which a reader could take for the end of the log."""
    versions = [(int(file.name[:20]), file) for file in log if is_of_a_version(file.name)]
    kept = min([checkpoint, *(version for version, file in versions if file.changed >= before)])
    return [file.name for version, file in versions if version < kept]
