"""The files of the table's log: a commit as its lines, and checks for damage, some of which delta-rs takes for a commit
of nothing."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.names import HINT, LOG, commit_file, is_log_file, version_of

_ENGINE = "spark-ehbalance"

#: The key in a commit's information under which its author finds it again.
COMMIT_TOKEN = "ehbalance.commit"

#: The key in a commit's information for the shape's version: see `Head`.
_SHAPE_VERSION = "ehbalance.shapeVersion"


@dataclass(frozen=True, slots=True)
class Head:
    """What a writer must know of a version of the table: its data files, and the version since which its protocol and
    its metadata are what they are, or an earlier one where that is not known."""

    version: int
    files: frozenset[str]
    shape_version: int

    def after(self, actions: Iterable[dict[str, Any]]) -> Head | None:
        """The head after the commit that consists of `actions`; None if only a whole engine can tell, as that has
        changed more than data files."""
        files = set(self.files)
        for action in actions:
            for kind, fields in action.items():
                if kind in ("add", "remove") and not (isinstance(fields, dict) and isinstance(fields.get("path"), str)):
                    return None
                if kind == "add" and not fields.get("partitionValues") and not fields.get("deletionVector"):
                    files.add(fields["path"])
                elif kind == "remove":
                    files.discard(fields["path"])
                elif kind != "commitInfo":
                    return None
        return Head(self.version + 1, frozenset(files), self.shape_version)

    def jumped_to(self, version: int, actions: Sequence[dict[str, Any]]) -> Head | None:
        """The head at a later `version`, whose commit consists of `actions`, with others in between; None if only a
        whole engine can tell. A commit that was made here replaces all data files, and knows the shape's version."""
        since = _commit_info(actions).get(_SHAPE_VERSION)
        if not isinstance(since, int) or since > self.version:
            return None
        return Head(version - 1, frozenset(), since).after(actions)


def creation(
    name: str, description: str, schema: str, properties: Mapping[str, str], at_ms: int
) -> list[dict[str, Any]]:
    """The actions of a commit that makes a table; `schema` is Delta's JSON for it, `at_ms` the wall clock."""
    metadata = {
        "id": str(uuid.uuid4()),
        "name": name,
        "description": description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "createdTime": at_ms,
        "configuration": dict(properties),
    }
    information = {"timestamp": at_ms, "operation": "CREATE TABLE", "engineInfo": _ENGINE}
    return [
        {"commitInfo": information},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]


def added(path: str, size: int, rows: int, at_ms: int) -> dict[str, Any]:
    """The action that adds the data file at `path`, of `size` bytes, changed at `at_ms`."""
    add = {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": at_ms,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"add": add}


def lines(actions: Iterable[dict[str, Any]]) -> bytes:
    """The log file that consists of `actions`."""
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def overwrite(head: Head, path: str, size: int, rows: int, token: str, at_ms: int) -> bytes:
    """The log file of a commit after `head` that replaces all data files by the one at `path`, of `size` bytes. `token`
    is how its author finds it again; `at_ms` is the wall clock."""
    information = {
        "timestamp": at_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Overwrite"},
        "readVersion": head.version,
        "isBlindAppend": False,
        "engineInfo": _ENGINE,
        COMMIT_TOKEN: token,
        _SHAPE_VERSION: head.shape_version,
    }
    removes = [{"remove": {"path": old, "deletionTimestamp": at_ms, "dataChange": True}} for old in sorted(head.files)]
    return lines([{"commitInfo": information}, *removes, added(path, size, rows, at_ms)])


def written_here(actions: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The action with which a commit that was made by `overwrite` adds the only data file, as a checkpoint has it; None
    for another commit."""
    if COMMIT_TOKEN not in _commit_info(actions):
        return None
    (add,) = (action["add"] for action in actions if "add" in action)
    return {"add": add | {"dataChange": False}}


def actions_of(content: bytes) -> list[dict[str, Any]]:
    """The actions of a log file. Raises `ValueError` with what is wrong with it: it cannot be read, is empty, or is cut
    off, as a write that adds nothing. A commit that was made here always adds a file, and says so last."""
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]  # of bytes: not at U+2028
        kinds = {kind for action in actions for kind in action}
        information = _commit_info(actions)
        ours, appends_nothing = COMMIT_TOKEN in information, _appends_nothing(information)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError("cannot be read") from None
    if not actions:
        raise ValueError("is empty")
    writes = information.get("operation") == "WRITE" and not appends_nothing
    if "add" not in kinds and (ours or (writes and "remove" not in kinds)):
        raise ValueError("is cut off")
    return actions


def shape_version(actions: Iterable[dict[str, Any]], version: int) -> int:
    """The shape's version that the commit of `version` tells; that version itself if it tells none."""
    told = _commit_info(actions).get(_SHAPE_VERSION)
    return told if isinstance(told, int) else version


def is_by(token: str, content: bytes) -> bool:
    """Whether the author with this token has written the log file."""
    return _commit_info(actions_of(content)).get(COMMIT_TOKEN) == token


def newest_checkpoint(names: Iterable[str]) -> int:
    """The version of the newest checkpoint among the log's files with these `names`; -1 if there is none."""
    return max((int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint." in name), default=-1)


def _commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _appends_nothing(information: dict[str, Any]) -> bool:
    """Whether it says so, as delta-rs or as Spark does."""
    metrics = information.get("operationMetrics") or {}
    return metrics.get("num_added_files") == 0 or metrics.get("numFiles") == "0"


def log_problems(folder: Folder) -> Iterator[tuple[str, str]]:
    """The files of the log that cannot be read, or that need one that is missing, each with its problem; the newest
    first. What is older than a checkpoint that can be read is not needed, and not looked at."""
    names = [file.name for file in folder.listed(LOG) if is_log_file(file.name)]
    for name in reversed(names):
        path = f"{LOG}/{name}"
        if name.endswith(".json"):
            content = folder.read(path)
            try:
                actions_of(content)
            except ValueError as problem:
                yield path, str(problem)
        elif name.endswith(".parquet"):
            try:
                folder.check_parquet(path)
                break
            except (ValueError, OSError):
                yield path, "cannot be read"
    yield from _missing(folder, names)


def _missing(folder: Folder, names: list[str]) -> Iterator[tuple[str, str]]:
    checkpoint = newest_checkpoint(names)
    if HINT in names:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            if json.loads(folder.read(f"{LOG}/{HINT}")).get("version") != checkpoint:
                yield f"{LOG}/{HINT}", "names a checkpoint that is missing"
    versions = (version for name in names if (version := version_of(name)) is not None)
    commits = [checkpoint, *sorted(version for version in versions if version > checkpoint)]
    for before, after in pairwise(commits):
        if after != before + 1:
            yield commit_file(after), "follows on a file that is missing"
            return
