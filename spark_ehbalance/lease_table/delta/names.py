"""Names of this store's files, which no other program uses. Only files with these names are removed."""

from __future__ import annotations

import re
import uuid

LOG = "_delta_log"

#: The file that names the newest checkpoint.
HINT = "_last_checkpoint"

#: Until a file is complete, local storage adds `#` and a number to its name.
_DATA = re.compile(r"lease-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet(?:#\d+)?")
_STAGED_LOG = re.compile(rf"{LOG}/(?:\d{{20}}\.(?:json|checkpoint\.parquet)|{HINT})#\d+")

#: The log files of one version: its commit, and the files that engines write next to it.
_VERSION = re.compile(r"\d{20}\.(?:json|crc|checkpoint(?:\.\S+)?\.parquet)")


def commit_file(version: int) -> str:
    """The name of the log file of `version`."""
    return f"{LOG}/{version:020}.json"


def checkpoint_file(version: int) -> str:
    """The name of the log's checkpoint at `version`."""
    return f"{LOG}/{version:020}.checkpoint.parquet"


def version_of(name: str) -> int | None:
    """The version of the commit file `name`; None for other files."""
    match = re.fullmatch(r"(\d{20})\.json", name)
    return int(match[1]) if match else None


def new_data_file() -> str:
    """A unique name for a data file."""
    return f"lease-{uuid.uuid4()}.parquet"


def is_data_file(name: str) -> bool:
    """Whether a file in the table's folder is a data file of this store, complete or not."""
    return _DATA.fullmatch(name) is not None


def is_of_a_version(name: str) -> bool:
    """Whether a file in the log belongs to one version, as commits and checkpoints do."""
    return _VERSION.fullmatch(name) is not None


def is_left_over(path: str) -> bool:
    """Whether the file at `path`, relative to the table's folder, may be left over from an interrupted write of this
    store."""
    return is_data_file(path) or _STAGED_LOG.fullmatch(path) is not None
