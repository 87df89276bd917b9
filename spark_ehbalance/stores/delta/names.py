"""The names that this store gives its files, and nobody else gives. Only what has one of them is removed without being
asked whose it is."""

from __future__ import annotations

import re
import uuid

LOG = "_delta_log"

#: The file that names the newest checkpoint.
HINT = "_last_checkpoint"

_DATA = re.compile(r"lease-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")

#: The log's files of one version: its commit, and what engines put beside it.
_VERSION = re.compile(r"\d{20}\.(?:json|crc|checkpoint(?:\.\S+)?\.parquet)")

#: What the local storage adds to a file's name until the file is whole.
_STAGED = re.compile(r"(.+)#\d+")


def commit_file(version: int) -> str:
    """The name of the log file that makes `version`."""
    return f"{LOG}/{version:020}.json"


def version_of(name: str) -> int | None:
    """The version of a log file, by its name in the log; None for other files."""
    match = re.fullmatch(r"(\d{20})\.json", name)
    return int(match[1]) if match else None


def new_data_file() -> str:
    """A name for a data file, which nobody has given before."""
    return f"lease-{uuid.uuid4()}.parquet"


def is_data_file(name: str) -> bool:
    """Whether a file of the table's folder is a data file that was written here."""
    return _DATA.fullmatch(name) is not None


def is_log_file(name: str) -> bool:
    """Whether a file of the log is one that Delta's engines write there."""
    return name == HINT or is_of_a_version(name)


def is_of_a_version(name: str) -> bool:
    """Whether a file of the log belongs to one version: a commit, or a checkpoint."""
    return _VERSION.fullmatch(name) is not None


def is_staged(name: str) -> bool:
    """Whether this is a local file that is not whole yet."""
    return _STAGED.fullmatch(name) is not None


def is_left_over(path: str) -> bool:
    """Whether a file, relative to the table's folder, is what a write that was cut off can leave: a data file without
    its commit, or a file that is not whole."""
    staged = _STAGED.fullmatch(path)
    whole = staged[1] if staged else path
    if is_data_file(whole):
        return True
    folder, _, name = whole.rpartition("/")
    return staged is not None and folder == LOG and is_log_file(name)
