"""Maintenance of the table: removal of files that no reader needs.

Ages are relative to the newest commit, by the storage's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from spark_ehbalance.lease_table.delta.folder import File, Folder
from spark_ehbalance.lease_table.delta.names import LOG, is_data_file, is_of_a_version, version_of

#: Seconds for which log files before a checkpoint are kept. A member that was suspended for a shorter time then finds
#: the next version, and so knows that its own version is not the newest; see `DeltaStore`.
LOG_SECONDS = 600.0

#: Seconds for which unneeded data files are kept for readers.
DATA_SECONDS = 60.0

#: Properties for other engines, which write checkpoints after their own commits.
PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
    # Otherwise, other engines' commits without rows (VACUUM) may remove the log file of the last commit with rows.
    "delta.enableExpiredLogCleanup": "false",
}


def remove_old_files(folder: Folder, data: list[File], log: list[File], version: int, needed: str) -> None:
    """Remove the old log files before the checkpoint at `version`, and this store's old data files except `needed`.
    `data` and `log` were listed before that version was read, so they contain no file of a later version.
    """
    now = max((file.changed for file in log if version_of(file.name) is not None), default=0.0)
    if folder.is_local:  # these times are from the machines' clocks, one of which may be fast
        now = min(now, time.time())
    gone = [f"{LOG}/{name}" for name in _old_log_files(log, version, now - LOG_SECONDS)]
    # An old uncommitted data file will never be committed: the newest log file is younger, so the version that the
    # file's author tried to commit exists. Other engines' files are removed by their VACUUM.
    unneeded = [file for file in data if is_data_file(file.name) and file.name != needed]
    folder.remove([*gone, *(file.name for file in unneeded if file.changed < now - DATA_SECONDS)])


def _old_log_files(log: Iterable[File], checkpoint: int, before: float) -> list[str]:
    """The log files of versions before the newest `checkpoint`, up to the first one changed at `before` or later. So
    the remaining log has no gap, which a reader could mistake for the end of the log."""
    versions = [(int(file.name[:20]), file) for file in log if is_of_a_version(file.name)]
    kept = min([checkpoint, *(version for version, file in versions if file.changed >= before)])
    return [file.name for version, file in versions if version < kept]
