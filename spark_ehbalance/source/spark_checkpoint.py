"""What Spark's checkpoint of a streaming query says of the batches that its `ehbalance` sources have read.

Spark writes one file for each batch that it begins, `offsets/N`, with a line for each source, and one for each batch
that the sink has finished, `commits/N`; it keeps the last 100 (`spark.sql.streaming.minBatchesToRetain`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from spark_ehbalance.errors import OptionError
from spark_ehbalance.source.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The end of a batch of one source, and whether the sink has finished it."""

    end: StreamOffset
    finished: bool


def read_checkpoint(location: str, storage_options: Mapping[str, str]) -> list[LoggedBatch]:
    """The batches of all `ehbalance` sources of the query whose `checkpointLocation` this is.

    Raises `OptionError` if it is no such folder, or knows of no such batch.
    """
    try:
        files = PyFileSystem(DeltaStorageHandler(location, dict(storage_options)))
        finished = set(_numbered(files, "commits"))
        batches = [
            LoggedBatch(end, number in finished)
            for number in _numbered(files, "offsets")
            for end in logged_ends(files.open_input_file(f"offsets/{number}").read().decode())
        ]
    except (OSError, DeltaError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise OptionError(f"--from-checkpoint={location} is wrong: it cannot be read: {reason}") from None
    if not batches:
        raise OptionError(
            f"--from-checkpoint={location} is wrong: allowed is the checkpointLocation of a query that has read from "
            "ehbalance"
        )
    return batches


def logged_ends(text: str) -> Iterator[StreamOffset]:
    """Of an offset log file, the end of the batch in each `ehbalance` source. Raises `EhBalanceError` if one is of a
    later version than this."""
    for line in text.splitlines()[1:]:
        try:
            offset = json.loads(line)
        except ValueError:
            continue  # a source without an offset, or one that writes something else
        if isinstance(offset, dict) and {"owner", "partitions"} <= offset.keys():
            yield StreamOffset.from_json(offset)


def _numbered(files: PyFileSystem, folder: str) -> list[int]:
    """The numbers of the batches that have a file in `folder`, which may be missing."""
    there = files.get_file_info(FileSelector(folder, allow_not_found=True))
    return sorted(int(each.base_name) for each in there if each.type is FileType.File and each.base_name.isdigit())
