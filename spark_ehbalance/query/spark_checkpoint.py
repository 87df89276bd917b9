"""Reads the offsets of `ehbalance` sources from a streaming query's checkpointLocation. `scala_checkpoint` reads those
of the Scala connector.

Spark writes a file `offsets/N` for each batch N that it begins, with one line per source, and a file `commits/N` for
each batch that the sink has finished. It keeps the files of the last 100 batches
(`spark.sql.streaming.minBatchesToRetain`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.lease_table.identity import for_delta_rs
from spark_ehbalance.query.offsets import LoggedBatch, StreamOffset
from spark_ehbalance.settings.secrets import hide, secret_values


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """The files of a checkpointLocation. The methods raise the storage's errors, which `opened` converts."""

    files: FileSystem

    def planned(self) -> list[int]:
        """The ids of the batches that Spark has begun, in order."""
        return self._batch_ids("offsets")

    def finished(self) -> list[int]:
        """The ids of the batches that the sink has finished, in order."""
        return self._batch_ids("commits")

    def offsets(self, batch: int) -> str:
        """The text of the file `offsets/batch`."""
        return self.text(f"offsets/{batch}")

    def text(self, name: str) -> str:
        """The text of the file `name`."""
        text: str = self.files.open_input_file(name).read().decode(errors="replace")
        return text

    def _batch_ids(self, folder: str) -> list[int]:
        """The ids of the batches that have a file in `folder`, which may be missing."""
        found = self.files.get_file_info(FileSelector(folder, allow_not_found=True))
        names = [file.base_name for file in found if file.type is FileType.File]
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


@contextlib.contextmanager
def opened(location: str, storage_options: Mapping[str, str]) -> Iterator[CheckpointFolder]:
    """Open the checkpointLocation at `location`. Raises `OptionError` if the folder does not exist or cannot be
    read."""
    try:
        yield CheckpointFolder(_folder(location, storage_options))
    except EhBalanceError:
        raise
    except (OSError, DeltaError, ValueError) as error:
        reason = " ".join(hide(str(error), secret_values(storage_options)).split())[:200]
        if isinstance(error, OSError) and error.filename == location:
            reason = str(error.strerror)  # without the location, which the error below contains
        raise OptionError("EHB_CHECKPOINT_UNUSABLE", location=location, reason=reason) from None


def logs(folder: CheckpointFolder) -> list[list[LoggedBatch]]:
    """The logged batches, oldest first, of each `ehbalance` source of the query."""
    found: dict[str, list[LoggedBatch]] = {}
    finished = set(folder.finished())
    for batch in folder.planned():
        for source, end in logged_ends(folder.offsets(batch)):
            found.setdefault(source, []).append(LoggedBatch(end, batch in finished))
    return list(found.values())


def logged_ends(text: str) -> Iterator[tuple[str, StreamOffset]]:
    """Yield each `ehbalance` source's name and the end of its batch, from the `text` of an offset log file.

    Raises `EhBalanceError` if an offset has a newer format.
    """
    version, _, *lines = (text + "\n\n").splitlines()
    for index, line in enumerate(lines):
        # In version 2 (since Spark 4.2), the source's name precedes the offset; in version 1, the line number is its
        # name.
        source, _, offset_text = line.partition(":") if version == "v2" else (str(index), "", line)
        try:
            offset = json.loads(offset_text)
        except (ValueError, RecursionError):
            continue  # the source has no offset, or does not write JSON
        if isinstance(offset, dict) and {"format", "group", "owner", "partitions"} <= offset.keys():
            yield source, StreamOffset.from_json(offset)


def _folder(location: str, storage_options: Mapping[str, str]) -> FileSystem:
    """The file system at `location`. Raises `OSError` if a local folder does not exist."""
    if "://" in location:
        return PyFileSystem(DeltaStorageHandler(location, for_delta_rs(storage_options)))
    files = LocalFileSystem()  # unlike delta-rs, it accepts any path
    os.listdir(location)
    return SubTreeFileSystem(location, files)
