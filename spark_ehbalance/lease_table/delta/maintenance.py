"""Keeps the table small: a checkpoint of the log, and the removal of files that no reader needs any more.

Ages are counted back from the newest commit, by the storage's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from spark_ehbalance.lease_table.delta.folder import File, Folder
from spark_ehbalance.lease_table.delta.names import LOG, is_data_file, is_of_a_version, version_of

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


def remove_old_files(folder: Folder, data: list[File], log: list[File], version: int, needed: str) -> None:
    """Remove the log files before the checkpoint at `version`, and the data files of this store but the one that is
    `needed` by it. `data` and `log` were listed before that version was known, so that no file of a later one is in
    them.
    """
    now = max((file.changed for file in log if version_of(file.name) is not None), default=0.0)
    if folder.is_local:  # its times are those of machines, one of which may have been ahead
        now = min(now, time.time())
    gone = [f"{LOG}/{name}" for name in _old_log_files(log, version, now - LOG_SECONDS)]
    # A data file that was never committed never will be: the newest log file is younger, so the version that its author
    # wanted to write is taken. What other engines have written is theirs to remove, by their VACUUM.
    unneeded = [file for file in data if is_data_file(file.name) and file.name != needed]
    folder.remove([*gone, *(file.name for file in unneeded if file.changed < now - DATA_SECONDS)])


def _old_log_files(log: Iterable[File], checkpoint: int, before: float) -> list[str]:
    """The files of the log that nobody needs: of versions before the one of the newest `checkpoint`, up to the first
    that was changed at `before` or later. What is kept has no gap, which a reader could take for the end of the log."""
    versions = [(int(file.name[:20]), file) for file in log if is_of_a_version(file.name)]
    kept = min([checkpoint, *(version for version, file in versions if file.changed >= before)])
    return [file.name for version, file in versions if version < kept]
