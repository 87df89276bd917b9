"""The files of a Delta table as they lie in its folder: read one by one, and looked through for what is damaged.

`files` is delta-rs's access to the folder (see `DeltaStore`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_ehbalance.leases.model import Lease
from spark_ehbalance.stores.delta.recovery import salvaged
from spark_ehbalance.stores.delta.table_format import SCHEMA, conformed, lease_of, rows_of

LOG = "_delta_log"

#: The file that says where the newest checkpoint is.
_HINT = "_last_checkpoint"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

#: The names of data files: those written here, and those of delta-rs and Spark.
_DATA_FILE = re.compile(rf"(?:{_UUID}|part-\d{{5,}}-{_UUID}[.-]c\d{{3,}}(?:\.\w+)*)\.parquet")


def listed(files: Any, folder: str) -> list[tuple[str, int]]:
    """Name and size in bytes of the files in `folder`, which may be missing; not of those in folders below."""
    return sorted((name, info.size) for name, info in _infos(files, folder))


def orphans(files: Any, known: Container[str], before: float) -> list[str]:
    """The data files of the table's folder that are not `known`, by their names, and were last changed `before` that
    time in seconds. Whatever has another name, or is in a folder below, is not the table's."""
    return [
        name
        for name, info in _infos(files, "")
        if _DATA_FILE.fullmatch(name) and name not in known and info.mtime and info.mtime.timestamp() < before
    ]


def _infos(files: Any, folder: str) -> list[tuple[str, Any]]:
    found = files.get_file_info_selector(folder, True, False)
    return [(each.path.rsplit("/", 1)[-1], each) for each in found if each.is_file]


def read_file(files: Any, name: str) -> bytes:
    """Raises `FileNotFoundError`, `OSError`."""
    file = files.open_input_file(name)
    size = file.size()
    return bytes(file.read(size)) if size else b""


def parquet_rows(files: Any, name: str) -> pa.Table:
    """The rows of a Parquet file. Raises `FileNotFoundError`, and `ValueError` or `OSError` if it is none.

    Arrow's own readers start threads, which end a process that exits soon after by an abort, one time in six when busy.
    """
    return pq.ParquetFile(pa.BufferReader(read_file(files, name))).read(use_threads=False)


def file_names(table: DeltaTable) -> list[str]:
    """The names of the table's data files in its folder."""
    return [uri.rsplit("/", 1)[1] for uri in table.file_uris()]


def log_problem(content: bytes) -> str:
    """What is wrong with a log file: it is empty, cut off, or a write that adds nothing; empty if all is well."""
    try:
        actions = [json.loads(line) for line in content.decode().splitlines() if line.strip()]
        kinds = {kind for action in actions for kind in action}
        writes = any(action.get("commitInfo", {}).get("operation") == "WRITE" for action in actions)
    except (ValueError, TypeError, AttributeError):
        return "cannot be read"
    if not actions:
        return "is empty"
    return "is cut off" if writes and not kinds & {"add", "remove"} else ""


def damaged_log(files: Any) -> Iterator[str]:
    """The files of the log that cannot be read, or lead nowhere, and what is wrong with each; the newest first."""
    names = [name for name, _ in listed(files, LOG)]
    for name in reversed(names):
        path = f"{LOG}/{name}"
        if name.endswith(".json") and (problem := log_problem(read_file(files, path))):
            yield f"{path} {problem}"
        elif name.endswith(".parquet"):
            try:
                parquet_rows(files, path)
            except (ValueError, OSError):
                yield f"{path} cannot be read"
    yield from _leading_nowhere(files, names)


def _leading_nowhere(files: Any, names: list[str]) -> Iterator[str]:
    versions = [(int(name[:20]), name) for name in names if name[:20].isdigit()]
    checkpoint = max((version for version, name in versions if ".checkpoint." in name), default=-1)
    if _HINT in names:
        with contextlib.suppress(ValueError, AttributeError):
            if json.loads(read_file(files, f"{LOG}/{_HINT}")).get("version") != checkpoint:
                yield f"{LOG}/{_HINT} names a checkpoint that is missing"
    commits = [checkpoint, *sorted(v for v, name in versions if name.endswith(".json") and v > checkpoint)]
    for before, after in pairwise(commits):
        if after != before + 1:
            yield f"{LOG}/{after:020}.json follows on a file that is missing"
            return


def found_leases(files: Any) -> tuple[list[Lease], set[str]]:
    """The leases in all data files of the folder, committed or not, as far as they can be told; and the files that
    cannot be read."""
    leases, unread = [], set()
    for name, _ in listed(files, ""):
        if name.endswith(".parquet"):
            try:
                rows = rows_of(conformed(parquet_rows(files, name), SCHEMA))
            except FileNotFoundError:  # tidied away meanwhile
                continue
            except (ValueError, OSError):
                unread.add(name)
                continue
            leases += [lease for row in rows if row["kind"] == "partition" and (lease := _found(row))]
    return leases, unread


def _found(row: dict[str, Any]) -> Lease | None:
    try:
        return lease_of(row)
    except ValueError:
        return salvaged(row)
